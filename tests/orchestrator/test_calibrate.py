"""The `calibrate` command on the simulated engine: records, resuming, refusals, exit codes."""

import json
import math
import shlex
from pathlib import Path

import pytest

pytest.importorskip("typer")

from engine.simulated import SimulatedEngine
from engine.tokenizer import ByteCodec
from orchestrator import Orchestrator
from orchestrator.cli import main
from search.calibration.record import load
from search.prompts import ChatPrompt
from search.types import Problem

SIMULATED = ("--model", "simulated", "--runtime", "inline", "-q")
WORLD = "simulated={depth: 3, p_step: 0.8, judge_noise: 0.45}"
N = 70
"""Problems, enough for alpha 0.05 (59) and not for 0.04 (74)."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Problems with the answers of the simulated world."""
    engine, codec = SimulatedEngine(), ByteCodec()
    rows = []
    for i in range(N):
        text = f"What is {i} + {i + 1}?"
        rows.append({"question": text, "answer": engine.truth(codec.render(ChatPrompt().messages(Problem(text))))})
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("engines were started before the input was checked")

    monkeypatch.setattr("orchestrator.orchestrator.start_pool", refuse)


def run(capsys, data: Path, *more: str, alpha: str = "0.05") -> tuple[int, str, str]:
    arguments = ["--data", str(data), "--out", str(data.with_name("record.json")), "--alpha", alpha]
    with pytest.raises(SystemExit) as stop:
        main(["calibrate", *arguments, *SIMULATED, "--set", WORLD, *more])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def decisions(data: Path) -> list[dict]:
    lines = data.with_name("record.decisions.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_a_calibration_from_problems_to_a_search_that_skips(capsys, data: Path):
    code, out, err = run(capsys, data)
    assert (code, err) == (0, "")
    path = data.with_name("record.json")
    record = load(path)
    assert (record.n, record.alpha, record.delta, record.rule, record.loss) == (N, 0.05, 0.05, "agreement", "flip")
    assert (record.draw.branches, record.draw.whole, record.setting.model[:9]) == (8, True, "simulated")
    assert shlex.split(record.command)[:4] == ["python", "-m", "orchestrator", "calibrate"]
    assert f"{N} decisions of 8 branches" in out and "verifier AUC: 0." in out
    assert out.strip().endswith(f"record: {path}")
    rows = decisions(data)
    assert len({row["problem_id"] for row in rows}) == len(rows) == N
    assert all(len(row["choices"]["agreement"]) == 16 and len(row["choices"]["paper"]) == 13 for row in rows)
    assert record.flips == sum(_flips(row, record.thresholds) for row in rows)
    assert record.skips > 0

    world = {"depth": 3, "p_step": 0.8, "judge_noise": 0.45}
    whole = {"step_delimiter": None, "max_step_tokens": 256, "merged": False}
    with Orchestrator(
        model="simulated", runtime="inline", simulated=world, cgee_record=str(path), cgee_audit=0, **whole
    ) as orchestrator:
        results = orchestrator.solve_many([f"Another {i}?" for i in range(20)], "tot", k=8, b=1, max_depth=1)
    assert sum(result.skips.by_rule.get("calibrated", 0) for result in results) > 0


def _flips(row: dict, thresholds) -> bool:
    """By hand, from the row's branches: does agreement at these thresholds select another answer than the scores?"""
    groups = [branch["group"] for branch in row["branches"]]
    counts = sorted((groups.count(group) for group in set(groups) - {None}), reverse=True)
    first, second = (*counts, 0, 0)[:2]
    tosses = first + second + 1
    certainty = sum(math.comb(tosses, heads) for heads in range(first + 1)) / 2**tosses
    if not first or certainty < thresholds["agree_at"]:
        return False
    answered = [branch for branch in row["branches"] if branch["answer"] is not None]
    best = max(answered, key=lambda branch: branch["score"])
    leading = max(answered, key=lambda branch: groups.count(branch["group"]))
    return best["group"] != leading["group"]


def test_the_same_command_goes_on_where_it_was_ended(capsys, data: Path, monkeypatch):
    import orchestrator.calibration_plan as plan

    _, whole, _ = run(capsys, data)
    log, record = data.with_name("record.decisions.jsonl"), data.with_name("record.json")
    lines, first = log.read_text().splitlines(keepends=True), record.read_text()
    log.write_text("".join(lines[:26]) + lines[26][:40])
    record.unlink()
    decided = []
    real = plan.decide
    monkeypatch.setattr(plan, "decide", lambda result: decided.append(result.problem.id) or real(result))
    code, out, _ = run(capsys, data)
    assert (code, out) == (0, whole)
    assert len(decided) == N - 25
    assert record.read_text() == first
    assert sorted(log.read_text().splitlines()) == sorted("".join(lines).splitlines())


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_run_keeps_its_decisions(capsys, data: Path, monkeypatch, interrupt):
    from orchestrator.decision_log import DecisionLog

    real = DecisionLog.add

    def add(log, decision):
        real(log, decision)
        if len(log.decisions) == 10:
            raise interrupt

    monkeypatch.setattr(DecisionLog, "add", add)
    run(capsys, data)
    assert len(decisions(data)) == 10 and not data.with_name("record.json").exists()
    monkeypatch.setattr(DecisionLog, "add", real)
    assert run(capsys, data)[0] == 0
    assert len(decisions(data)) == N


def test_a_finished_calibration_starts_no_engine(capsys, data: Path, monkeypatch):
    _, whole, _ = run(capsys, data)
    monkeypatch.setattr("orchestrator.orchestrator.start_pool", lambda *a, **k: pytest.fail("engines were started"))
    assert run(capsys, data)[:2] == (0, whole)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--delta", "0.06"], "delta: there 0.05, here 0.06"),
        (["--rule", "paper"], "rule: there 'agreement', here 'paper'"),
        (["--seed", "1"], "seed: there 0, here 1"),
        (["--branches", "4"], "branches: there 8, here 4"),
        (["--max-tokens", "99"], "max_tokens: there 256, here 99"),
        (["--family", "gsm8k"], "family: there 'general', here 'gsm8k'"),
        (["--limit", "60"], "data: there"),
        (["--set", "temperature=0.7"], "temperature: there 0.8, here 0.7"),
    ],
)
def test_changed_settings_are_refused_with_the_differing_keys(capsys, data: Path, more, words: str):
    run(capsys, data)
    before = data.with_name("record.decisions.jsonl").read_text()
    code, out, err = run(capsys, data, *more)
    assert (code, out) == (2, "")
    assert "begun with other settings" in err and words in err
    assert data.with_name("record.decisions.jsonl").read_text() == before


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(("alpha", "needed"), [("0.04", 74), ("0.01", 299)])
def test_too_few_problems_are_refused_with_the_needed_n(capsys, data: Path, alpha: str, needed: int):
    code, out, err = run(capsys, data, alpha=alpha)
    assert (code, out) == (2, "")
    assert f"{N} decisions are too few" in err and f"at least {needed} different problems" in err


@pytest.mark.usefixtures("no_engine")
def test_a_repeated_problem_does_not_count_twice(capsys, data: Path):
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join(lines[:58] + lines[:20]))
    code, _, err = run(capsys, data)
    assert code == 2 and "58 decisions are too few" in err


def test_repeated_problems_are_left_out_and_said(capsys, data: Path):
    lines = data.read_text().splitlines(keepends=True)
    data.write_text("".join(lines + [line.replace("What is", " What  is") for line in lines[:3]]))
    code, _, err = run(capsys, data)
    assert (code, err) == (0, "3 repeated problems left out\n")
    assert load(data.with_name("record.json")).n == N


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--alpha", "0"], "--alpha must be between 0 and 1"),
        (["--delta", "1"], "--delta must be between 0 and 1"),
        (["--loss", "pain"], "--loss must be one of flip, harm; got 'pain'"),
        (["--rule", "off"], "'off' cannot be calibrated; choices: agreement, paper"),
        (["--branches", "1"], "at least 2 branches, got 1"),
        (["--verifier", "none"], "'none' verifies nothing"),
        (["--set", "temperature=0"], "temperature must be above 0"),
        (["--set", "cgee=paper"], "calibrate sets cgee itself"),
        (["--set", "step_tokens=5"], "calibrate sets step_tokens itself"),
        (["--set", "enginez=2"], "did you mean 'engines'"),
        (["--data", "gone.jsonl"], "no such file"),
        (["--out", "gone/record.json"], "--out 'gone/record.json' must be a file"),
        (["--out", "."], "--out '.' must be a file"),
    ],
)
def test_what_cannot_be_calibrated_is_one_clear_line_and_exit_2(capsys, data: Path, more, words: str):
    code, out, err = run(capsys, data, *more)
    assert (code, out) == (2, "")
    assert words in err and len(err.strip().splitlines()) == 1


@pytest.mark.usefixtures("no_engine")
def test_harm_needs_the_answers(capsys, data: Path):
    data.write_text(data.read_text() + '{"question": "unknown?"}\n')
    code, _, err = run(capsys, data, "--loss", "harm")
    assert code == 2 and "loss 'harm' needs the right answers" in err and "has no 'answer'" in err


def test_harm_and_paper(capsys, data: Path):
    code, out, _ = run(capsys, data, "--loss", "harm", "--rule", "paper")
    record = load(data.with_name("record.json"))
    assert (code, record.loss, record.rule) == (0, "harm", "paper")
    assert record.k == record.harms <= record.flips
    assert "tau_conf=0.7 gap=0.06 rel=0.08" in out


def test_an_engine_that_always_fails_is_exit_3_and_no_record(capsys, data: Path, monkeypatch):
    monkeypatch.setattr("engine.simulated.SimulatedEngine.write", _broken)
    code, out, err = run(capsys, data)
    assert (code, out) == (3, "")
    assert "engine is broken" in err and not data.with_name("record.json").exists()


def _broken(*args: object) -> str:
    raise RuntimeError("engine is broken")


@pytest.mark.parametrize(("every", "enough"), [(10, True), (2, False)])
def test_some_failed_problems_are_exit_1_and_tried_again(capsys, data: Path, monkeypatch, every: int, enough: bool):
    """Without one problem of 10, 63 decisions are left: a record. Without every second: 35, which are too few."""
    real = SimulatedEngine.write

    def write(engine, path, stream):
        first = int(path[0].split("What is ")[1].split()[0])
        return real(engine, path, stream) if first % every else _broken()

    monkeypatch.setattr(SimulatedEngine, "write", write)
    code, out, err = run(capsys, data)
    assert code == 1 and len(decisions(data)) == N - N // every
    assert err.count("engine is broken") == N // every
    assert data.with_name("record.json").exists() == enough == bool(out)
    assert ("35 decisions are too few" in err) != enough
    monkeypatch.setattr(SimulatedEngine, "write", real)
    assert run(capsys, data)[0] == 0
    assert load(data.with_name("record.json")).n == N


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{\n", "not JSON"),
        ("{}\n", "not begun by 'calibrate'"),
        ('{"version": 7}\n', "not begun by 'calibrate'"),
    ],
)
def test_a_file_that_is_no_log_is_left_alone(capsys, data: Path, text: str, words: str):
    log = data.with_name("record.decisions.jsonl")
    log.write_text(text)
    code, _, err = run(capsys, data)
    assert code == 2 and words in err
    assert log.read_text() == text


def test_a_broken_row_is_named(capsys, data: Path):
    run(capsys, data)
    log = data.with_name("record.decisions.jsonl")
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([*lines[:4], '{"problem_id": "x"}\n', *lines[5:]]))
    code, _, err = run(capsys, data)
    assert code == 2 and "record.decisions.jsonl:5: missing 'branches'" in err
