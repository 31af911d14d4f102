"""The command line: usage errors before anything expensive, JSON alone on standard output, exit codes."""

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

from orchestrator.cli import main

SIMULATED = ("--model", "simulated", "--runtime", "inline")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["solve", *arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to start engines is a failure of the test."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("engines were started before the input was checked")

    monkeypatch.setattr("orchestrator.orchestrator.start_pool", refuse)


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([""], ["problem is empty"]),
        (["  \n "], ["problem is empty"]),
        (["hi", "--strategy", "totx"], ["'totx'", "did you mean 'tot'", "self_consistency"]),
        (["hi", "-o", "brnch=3"], ["no option 'brnch'", "choices", "max_depth"]),
        (["hi", "-o", "b=0"], ["option b", ">= 1", "got 0"]),
        (["hi", "-o", "b"], ["key=value", "'b'"]),
        (["hi", "-o", "seed=3"], ["no option 'seed'"]),
        (["hi", "-o", "name=3"], ["'name'"]),
        (["hi", "--set", "enginez=2"], ["'enginez'", "did you mean 'engines'"]),
        (["hi", "--set", "temperature=-1"], ["temperature=-1"]),
        (["hi", "--engines", "0"], ["engines=0", "at least 1"]),
        (["hi", "--engines", "many"], ["'many'", "auto"]),
        (["hi", "--verifier", "oracle"], ["'oracle'", "self_evaluation"]),
        (["hi", "--tokens", "0"], ["budget tokens", "positive"]),
        (["hi", "--model", "nowhere"], ["'nowhere'", "embedded", "simulated", ".gguf"]),
        (["hi", "--model", "./gone.gguf"], ["'./gone.gguf'", "no such file"]),
        (["gone.jsonl"], ["no such file", "gone.jsonl"]),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_2(capsys, arguments, words):
    code, out, err = run(capsys, *(arguments if "--model" in arguments else [*arguments, *SIMULATED]))
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    for word in words:
        assert word in err


@pytest.mark.usefixtures("no_engine")
def test_too_long_a_problem_is_refused_with_the_numbers(capsys, tmp_path: Path):
    file = tmp_path / "long.txt"
    file.write_text("word " * 20_000)
    code, _, err = run(capsys, str(file), *SIMULATED)
    assert code == 2
    assert "too long" in err
    assert "context of 32768" in err


@pytest.mark.usefixtures("no_engine")
def test_files_that_are_not_text_or_not_rows(capsys, tmp_path: Path):
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bad.jsonl").write_text('{"question": "a"}\n{"q": 1}\n')
    (tmp_path / "broken.jsonl").write_text("{\n")
    (tmp_path / "long.jsonl").write_text('{"question": "a", "answer": 1' + "0" * 5000 + "}\n")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    for name, word in (
        ("bad.txt", "not UTF-8"),
        ("bad.jsonl", "bad.jsonl:2"),
        ("broken.jsonl", "not JSON"),
        ("long.jsonl", "too many digits"),
        ("deep.jsonl", "nested too deeply"),
    ):
        code, _, err = run(capsys, str(tmp_path / name), *SIMULATED)
        assert (code, word in err) == (2, True), err


@pytest.mark.usefixtures("no_engine")
def test_case_48_a_missing_hub_model_is_one_line_that_says_what_to_do(capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, _, err = run(capsys, "hi", "--model", "nobody/nothing")
    assert code == 2
    assert "not in the local hub cache" in err
    assert "embedded" in err


def test_impossible_gpus_are_refused_before_a_model_loads(capsys, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    code, out, err = run(capsys, "hi", *SIMULATED, "--gpus-per-engine", "1", "--engines", "3")
    assert (code, out) == (2, "")
    assert "need 3 GPU" in err
    assert "has 0" in err


def test_json_is_one_object_and_nothing_else(capsys):
    code, out, err = run(capsys, "What is 2 + 2?", *SIMULATED, "--json", "--engines", "2", "--seed", "3")
    assert code == 0, err
    result = json.loads(out)
    assert len(out.strip().splitlines()) == 1
    assert {
        "answer",
        "text",
        "complete",
        "stop_reason",
        "strategy",
        "seed",
        "tokens",
        "seconds",
        "engines",
        "tree",
    } <= set(result)
    assert result["strategy"] == "tot"
    assert result["seed"] == 3
    assert result["tokens"]["reused"]["exact"] > 0
    assert set(result["engines"]) == {"engine-0", "engine-1"}
    nodes = result["tree"]["nodes"]
    assert {"id", "parent", "depth", "text", "score", "visits", "status", "engine"} <= set(nodes[1])
    assert {node["engine"] for node in nodes[1:]} == {"engine-0", "engine-1"}


def test_text_shows_tree_cost_and_answer(capsys):
    code, out, _ = run(capsys, "What", "is", "2 + 2?", *SIMULATED)
    assert code == 0
    assert "tree:" in out
    assert "[engine-0 " in out
    assert "tokens generated" in out
    assert out.strip().splitlines()[-1].startswith("answer: ")


def test_a_file_gives_a_line_per_problem(capsys, tmp_path: Path):
    file = tmp_path / "rows.jsonl"
    file.write_text(
        '{"id": "a", "question": "One?"}\n\n{"id": "b", "question": "Two?"}\n{"id": "c", "question": "Three?"}\n'
    )
    code, out, _ = run(capsys, str(file), *SIMULATED, "--json", "--limit", "2")
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["a", "b"]


def test_config_file_and_flags(capsys, tmp_path: Path):
    config = tmp_path / "run.yaml"
    config.write_text("model: simulated\nruntime: inline\nmax_step_tokens: 7\n")
    code, out, _ = run(capsys, "hi", "--config", str(config), "--json", "-o", "k=2", "--nodes", "3")
    assert code == 0
    result = json.loads(out)
    assert result["stop_reason"] == "nodes"
    assert max(node["tokens"] for node in result["tree"]["nodes"]) <= 7
    config.write_text("modell: simulated\n")
    code, _, err = run(capsys, "hi", "--config", str(config))
    assert code == 2
    assert "did you mean 'model'" in err


def test_case_19_an_engine_that_always_fails_exits_3_with_a_short_log(capsys, monkeypatch):
    monkeypatch.setattr("engine.simulated.SimulatedEngine.write", _raise)
    code, out, err = run(capsys, "hi", *SIMULATED, "--json")
    assert code == 3
    assert json.loads(out)["stop_reason"] == "failed"
    assert "engine is broken" in err
    assert len(err) < 2000


def _raise(*args: object) -> str:
    raise RuntimeError("engine is broken")
