"""The `compare` and `estimate` commands, and the verifiers that can be named."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("typer")

from engine.simulated import SimulatedEngine
from engine.tokenizer import ByteCodec
from orchestrator import Orchestrator, UsageError
from orchestrator.cli import main
from search.prompts import ChatPrompt
from search.types import Problem

SIMULATED = ("--model", "simulated", "--runtime", "inline", "--quiet")
TOGETHER = ("--set", "concurrency=1")


def run(capsys, command, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([command, *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Problems whose answers the simulated engine believes in."""
    truth, codec, rows = SimulatedEngine(), ByteCodec(), []
    for n in range(12):
        question = f"What is {n} * {n + 1}?"
        prompt = codec.render(ChatPrompt().messages(Problem(question)))
        rows.append({"question": question, "answer": truth.truth(prompt), "id": n})
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def test_case_22_compare_at_equal_tokens(capsys, data):
    code, out, err = run(capsys, "compare", "--data", str(data), "--tokens", "900", "--json", *SIMULATED)
    assert (code, err) == (0, "")
    found = json.loads(out)
    lines = {line["strategy"]: line for line in found["strategies"]}
    assert list(lines) == ["greedy", "self_consistency", "best_of_n", "beam", "tot", "mcts"]
    assert (found["baseline"], found["tokens"]) == ("greedy", 900)
    for line in lines.values():
        assert (line["problems"], line["graded"], line["failed"]) == (12, 12, 0)
        assert 0 < line["generated"] <= 900
        assert line["interval"][0] <= line["accuracy"] <= line["interval"][1]
        assert line["oracle"] >= line["accuracy"]
        assert sum(line["stop_reasons"].values()) == 12
    assert lines["best_of_n"]["oracle"] > lines["greedy"]["accuracy"]
    assert 0.0 <= lines["best_of_n"]["auc"] <= 1.0 and lines["greedy"]["auc"] is None
    assert all((line["p_value"] is None) == (name == "greedy") for name, line in lines.items())


def test_the_table_names_every_column_and_warns_in_words(capsys, data):
    code, out, _ = run(
        capsys, "compare", "--data", str(data), "--strategies", "mcts", "-o", "mcts.simulations=1", *SIMULATED
    )
    assert code == 0
    head, greedy, mcts, *rest = out.splitlines()
    for column in ("accuracy", "95 % interval", "pass@n", "tokens", "verified", "AUC", "won:lost", "p", "stopped by"):
        assert column in head
    assert greedy.startswith("greedy") and mcts.startswith("mcts")
    assert any(line.startswith("warning: mcts is below greedy:") for line in rest)
    assert "exact McNemar" in rest[-1]


def test_a_run_that_was_stopped_goes_on_from_its_file(capsys, data, tmp_path, monkeypatch):
    out_file = tmp_path / "run.jsonl"
    arguments = (
        "--data",
        str(data),
        "--strategies",
        "greedy,tot",
        "--json",
        "--out",
        str(out_file),
        *SIMULATED,
        *TOGETHER,
    )
    _, whole, _ = run(capsys, "compare", *arguments)
    lines = out_file.read_text().splitlines()
    assert len(lines) == 1 + 24
    out_file.write_text("\n".join(lines[:15]) + '\n{"strategy": "to', encoding="utf-8")
    solved = []
    inner = Orchestrator.solve_each

    def counting(self, problems, *more, **options):
        solved.append(len(problems))
        return inner(self, problems, *more, **options)

    monkeypatch.setattr(Orchestrator, "solve_each", counting)
    code, again, _ = run(capsys, "compare", *arguments)
    assert (code, solved) == (0, [0, 10])

    def timeless(text):
        return [{k: v for k, v in line.items() if k != "seconds"} for line in json.loads(text)["strategies"]]

    assert timeless(again) == timeless(whole)
    assert len(out_file.read_text().splitlines()) == 1 + 24


def test_an_answer_that_was_corrected_is_graded_anew(capsys, data, tmp_path):
    out_file = tmp_path / "run.jsonl"
    arguments = ("--data", str(data), "--strategies", "greedy", "--json", "--out", str(out_file), *SIMULATED)

    def accuracy() -> float:
        return json.loads(run(capsys, "compare", *arguments)[1])["strategies"][0]["accuracy"]

    assert accuracy() > 0
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps({**row, "answer": "none of these"}) + "\n" for row in rows))
    assert accuracy() == 0
    assert len(out_file.read_text().splitlines()) == 1 + 2 * 12


def test_a_full_disk_keeps_what_was_written_and_the_same_command_goes_on(capsys, data, tmp_path):
    out_file = tmp_path / "run.jsonl"
    arguments = ["compare", "--data", str(data), "--strategies", "greedy", "--out", str(out_file), *SIMULATED]
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2);"
        "from orchestrator.cli import main; main(sys.argv[2:])"
    )
    lines = [0]
    for size in (3000, 1000):  # room for some records, then for fewer bytes than there are
        command = [sys.executable, "-c", limited, str(size), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and "File too large" in done.stderr
        assert done.returncode == (75 if size == 3000 else 2)
        lines.append(out_file.read_text().count("\n"))
    assert 1 < lines[1] == lines[2] < 1 + 12
    assert run(capsys, *arguments)[0] == 0
    assert len(out_file.read_text().splitlines()) == 1 + 12


def test_a_file_with_other_settings_is_refused_by_name(capsys, data, tmp_path):
    out_file = tmp_path / "run.jsonl"
    arguments = ("--data", str(data), "--strategies", "greedy", "--limit", "2", "--out", str(out_file), *SIMULATED)
    assert run(capsys, "compare", *arguments)[0] == 0
    code, _, err = run(capsys, "compare", *arguments, "--tokens", "99", "--seed", "3")
    assert code == 2 and "other settings: seed, tokens" in err
    data.write_text("{}")
    code, _, err = run(capsys, "compare", "--data", str(data), *SIMULATED)
    assert code == 2 and "needs a text under 'question'" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["task 'plain' needs --data"]),
        (["--data", "gone.jsonl"], ["'gone.jsonl' cannot be read"]),
        (["--data", "gone.txt"], [".jsonl or .csv", "'gone.txt'"]),
        (["--data", "DATA", "--strategies", "greedy,beem"], ["'beem'", "did you mean 'beam'"]),
        (["--data", "DATA", "-o", "simulations=3"], ["strategy.key=value", "mcts", "'simulations'"]),
        (["--data", "DATA", "-o", "mcts.simulation=3"], ["no option 'simulation'", "simulations"]),
        (["--data", "DATA", "--task", "gsm"], ["unknown task 'gsm'", "gsm8k"]),
        (["--data", "DATA", "--task", "gsm8k", "-t", "colour=red"], ["task 'gsm8k'", "colour"]),
        (["--data", "DATA", "--task", "reasoning_gym"], ["leave out --data"]),
        (["--data", "OPEN"], ["needs problems with an 'answer'"]),
        (["--data", "LONG"], ["long.jsonl:1 is not JSON", "too many digits"]),
        (["--data", "TWICE"], ["a different id for every problem", "'1'"]),
        (["--data", "DATA", "--tokens", "0"], ["budget tokens", "positive"]),
        (["--data", "DATA", "--verifier", "oracle"], ["'oracle'", "self_evaluation"]),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(capsys, data, tmp_path, arguments, words):
    unanswered = tmp_path / "open.jsonl"
    unanswered.write_text('{"question": "Why?"}\n', encoding="utf-8")
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"id": "1", "question": "6 * 7?", "answer": "42"}\n' * 2, encoding="utf-8")
    long = tmp_path / "long.jsonl"
    long.write_text('{"question": "a", "answer": 1' + "0" * 5000 + "}\n", encoding="utf-8")
    files = {"DATA": data, "OPEN": unanswered, "TWICE": twice, "LONG": long}
    given = [str(files.get(word, word)) for word in arguments]
    code, out, err = run(capsys, "compare", *given, *SIMULATED)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


def test_tasks_set_the_prompt_and_the_kind(capsys, tmp_path):
    puzzles = tmp_path / "game24.csv"
    puzzles.write_text("Rank,Puzzles\n1,1 1 4 6\n2,1 4 7 8\n", encoding="utf-8")
    code, out, _ = run(
        capsys, "compare", "--data", str(puzzles), "--task", "game24", "--strategies", "tot", "--json", *SIMULATED
    )
    assert code == 0
    assert [line["graded"] for line in json.loads(out)["strategies"]] == [2, 2]


# -- estimate ------------------------------------------------------------------------------------------------------
def test_case_27_estimate_prints_a_bound_that_the_run_keeps(capsys, data):
    code, out, _ = run(capsys, "estimate", str(data), "--strategy", "mcts", "--model", "simulated", "--json")
    bound = json.loads(out)
    assert (code, bound["problems"]) == (0, 12)
    with Orchestrator(model="simulated", runtime="inline") as orchestrator:
        problems = [json.loads(line)["question"] for line in data.read_text().splitlines()]
        results = orchestrator.solve_many(problems, "mcts")
    assert sum(result.cost.generated for result in results) <= bound["generated"]
    assert sum(result.cost.verified for result in results) <= bound["verified"]
    assert sum(len(result.tree.asked) for result in results) <= bound["calls"]
    assert sum(len(result.tree) - 1 for result in results) <= bound["nodes"]


def test_case_27_estimate_in_words_splits_generation_and_verification(capsys):
    code, out, _ = run(
        capsys,
        "estimate",
        "What is 3 + 4?",
        "--strategy",
        "tot",
        "-o",
        "b=2",
        "--tokens",
        "500",
        "--model",
        "simulated",
    )
    assert code == 0
    assert "generation: at most 500 tokens in at most 21 samples, at most 7 engine calls" in out
    assert "verification: at most 21 paths in at most 7 calls" in out
    assert "MiB" in out and "tree: at most 21 nodes, at most 4 deep" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hi", "--strategy", "totx"], ["'totx'", "did you mean 'tot'"]),
        (["hi", "-o", "b=0"], ["option b", ">= 1"]),
        (["hi", "-o", "budget=3"], ["no option 'budget'"]),
        (["hi", "--tokens", "0"], ["budget tokens", "positive"]),
        ([" "], ["problem is empty"]),
    ],
)
def test_estimate_refuses_what_solve_refuses(capsys, arguments, words):
    code, out, err = run(capsys, "estimate", *arguments, "--model", "simulated")
    assert (code, out) == (2, "")
    for word in words:
        assert word in err


# -- verifiers by name ---------------------------------------------------------------------------------------------
def simulated(**options):
    return Orchestrator(model="simulated", runtime="inline", **options)


def test_a_command_verifies(tmp_path):
    script = tmp_path / "check.py"
    script.write_text("import json, sys\nprint(0.9 if json.load(sys.stdin)['complete'] else 0.1)\n")
    with simulated(verifier="command", verifier_command=f"{sys.executable} {script}") as orchestrator:
        result = orchestrator.solve("What is 3 + 4?", "best_of_n", samples=2, wave=2)
    assert {node.score for node in result.tree.complete()} == {0.9}


def test_tot_by_votes_takes_the_vote_verifier():
    with simulated() as orchestrator:
        result = orchestrator.solve("What is 3 + 4?", "tot", evaluate="vote", b=2, k=3)
    assert sum(node.score for node in result.tree.level(1)) == pytest.approx(1.0)
    with simulated(verifier="vote") as orchestrator:
        named = orchestrator.solve("What is 3 + 4?", "tot", b=2, k=3)
    assert sum(node.score for node in named.tree.level(1)) == pytest.approx(1.0)


def test_the_checker_verifies_against_the_reference():
    with simulated(verifier="checker") as orchestrator:
        result = orchestrator.solve(Problem("What is 3 + 4?", reference="7"), "best_of_n", samples=4)
    assert {node.score for node in result.tree.complete()} <= {0.0, 1.0}


@pytest.mark.parametrize(
    ("options", "call", "words"),
    [
        ({"verifier": "command"}, {}, ["verifier='command'", "program that can be run"]),
        ({"verifier": "command", "verifier_command": "no-such-program"}, {}, ["no-such-program"]),
        ({"verifier_command": "true"}, {}, ["verifier_command='true' goes with verifier='command'"]),
        (
            {"verifier": lambda p, t: 0.5},
            {"strategy": "tot", "evaluate": "vote"},
            ["evaluate='vote'", "evaluate='value'"],
        ),
        ({"verifier": "confidence"}, {"strategy": "tot", "evaluate": "vote"}, ["verifier='confidence'"]),
    ],
)
def test_a_verifier_that_cannot_be_used_is_a_usage_error(options, call, words):
    with pytest.raises(UsageError) as raised, simulated(**options) as orchestrator:
        orchestrator.solve("What is 3 + 4?", **call)
    for word in words:
        assert word in str(raised.value)
