"""Verify-skip through Orchestrator and the command line: by configuration, by call, by record; refusals by name."""

import json
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from engine.base import Branch
from engine.scripted import ScriptedEngine
from engine.tokenizer import ByteCodec
from orchestrator import Config, Orchestrator, UsageError
from orchestrator.cgee import template_key, with_known_dtype
from orchestrator.cli import main
from search.calibration.record import CalibrationRecord, save
from search.cgee.paper import Paper
from search.prompts import ChatPrompt
from search.types import Event
from tests.search.records import record

INLINE = {"model": "simulated", "runtime": "inline"}
WHOLE = {"step_delimiter": None, "max_step_tokens": 256, "merged": False}
ONE_WAVE = {"k": 8, "b": 1, "max_depth": 1}
ALWAYS = {"agree_at": 0.51}


def recorded(path: Path, orchestrator: Orchestrator, **changes) -> CalibrationRecord:
    """A record for this orchestrator's own setting, that skips wherever branches agree at all."""
    one = record(setting=orchestrator.setting, rule="agreement", thresholds=ALWAYS, **changes)
    save(one, path)
    return one


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """File of a record for INLINE with WHOLE."""
    with Orchestrator(**INLINE, **WHOLE) as orchestrator:
        recorded(tmp_path / "record.json", orchestrator)
    return tmp_path / "record.json"


# -- which rule ----------------------------------------------------------------------------------------------------
def test_nothing_is_skipped_unless_it_is_asked_for():
    with Orchestrator(**INLINE) as orchestrator:
        assert orchestrator.solve("a?", "tot").skips.decisions == 0
        assert orchestrator.solve("a?", "tot", cgee="auto").skips.decisions == 0


def test_by_configuration_and_by_call():
    with Orchestrator(cgee="paper", **INLINE) as orchestrator:
        skipped = [orchestrator.solve(f"{i}?", "tot").skips for i in range(6)]
        assert sum(skips.by_rule.get("paper", 0) for skips in skipped) > 0
        assert orchestrator.solve("a?", "tot", cgee="off").skips.decisions == 0
    with Orchestrator(**INLINE) as orchestrator:
        every = orchestrator.solve("a?", "tot", cgee=Paper(tau_conf=0.0, gap=0.0, rel=0.0))
        assert every.skips.skipped == every.skips.decisions > 0 == every.cost.verified
        (result,) = orchestrator.solve_many(["a?"], "tot", cgee="paper")
        assert result.skips.decisions > 0
        items = list(orchestrator.stream("a?", "tot", cgee=Paper(tau_conf=0.0, gap=0.0, rel=0.0)))
        assert "skip" in [item.kind for item in items if isinstance(item, Event)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Orchestrator(cgee="papr", **INLINE),
            "unknown cgee rule 'papr'; choices: auto, agreement,",
        ),
        (lambda: Orchestrator(cgee=True, **INLINE), "cgee=True is not valid"),
        (lambda: Orchestrator(cgee="calibrated", **INLINE), "needs a record: give cgee_record=FILE"),
        (lambda: Orchestrator(cgee_record="gone.json", **INLINE), r"'gone.json' cannot be read"),
        (lambda: Orchestrator(cgee_audit=2, **INLINE), "cgee_audit=2 is not valid"),
        (lambda: Orchestrator(**INLINE).solve("a?", cgee="papr"), "unknown cgee rule 'papr'"),
        (lambda: Orchestrator(**INLINE).solve("a?", cgee="calibrated"), "needs a record"),
        (lambda: Orchestrator(**INLINE).solve("a?", cgee=Paper), "name of a rule or a rule object"),
        (lambda: Orchestrator(**INLINE).solve("a?", cgee=5), "name of a rule or a rule object"),
    ],
)
def test_what_cannot_be_meant_is_refused(call, words: str):
    with pytest.raises(UsageError, match=words):
        call()


def test_an_engine_without_confidences_is_refused_before_it_starts():
    engine = ScriptedEngine(["Answer: 1"], capabilities=frozenset({"score"}))
    with Orchestrator(engine=lambda: engine, runtime="inline", cgee="paper") as orchestrator:
        with pytest.raises(UsageError, match="'paper' needs confidence"):
            orchestrator.solve("a?", "tot")
        assert orchestrator.solve("a?", "tot", cgee="agreement").answer == "1"


# -- with a record -------------------------------------------------------------------------------------------------
def test_a_matching_record_skips_without_a_word(path: Path):
    with Orchestrator(cgee_record=str(path), cgee_audit=0.0, **INLINE, **WHOLE) as orchestrator:
        results = [orchestrator.solve(f"{i}?", "tot", **ONE_WAVE) for i in range(8)]
        assert sum(result.skips.by_rule.get("calibrated", 0) for result in results) > 0
        assert not any(result.warnings for result in results)
        assert orchestrator.solve("0?", "tot", cgee="off", **ONE_WAVE).skips.decisions == 0


def test_audits_verify_a_share_of_the_skips(path: Path):
    with Orchestrator(cgee_record=str(path), cgee_audit=1.0, **INLINE, **WHOLE) as orchestrator:
        results = [orchestrator.solve(f"{i}?", "tot", **ONE_WAVE) for i in range(8)]
    assert sum(result.skips.audited for result in results) > 0 == sum(result.skips.skipped for result in results)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"family": "gsm8k"}, "family: record 'general', here 'gsm8k'"),
        ({"system": "Be brief."}, "template: record"),
        ({"instruction": "Answer."}, "template: record"),
        ({"verifier": "confidence"}, "verifier: record 'self_evaluation', here 'confidence'"),
        ({"verifier": lambda p, t: 0.5}, "verifier: record 'self_evaluation', here 'own:"),
        ({"simulated": {"depth": 3}}, "model: record"),
        ({"dtype": "bfloat16"}, "dtype: record 'auto', here 'bfloat16'"),
    ],
)
def test_a_record_for_another_setting_is_refused_with_the_differing_fields(path: Path, changes, words: str):
    with Orchestrator(**{**INLINE, **WHOLE, **changes}, cgee_record=str(path)) as orchestrator:
        with pytest.raises(UsageError, match=words) as refused:
            orchestrator.solve("a?", "tot", **ONE_WAVE)
        assert "record.json" in str(refused.value)
        assert orchestrator.solve("a?", "tot", cgee="off", **ONE_WAVE).skips.decisions == 0


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({}, {"k": 6}, "branches: record 8, here 6"),
        ({}, {"hints": ["be brief"]}, "hints: record 0, here 1"),
        ({"temperature": 0.5}, {}, "temperature: record 0.8, here 0.5"),
        ({"step_delimiter": "\n\n"}, {}, "whole: record True, here False"),
    ],
)
def test_waves_drawn_otherwise_are_verified_and_the_result_says_why(path: Path, config, options, words: str):
    with Orchestrator(**{**INLINE, **WHOLE, **config}, cgee_record=str(path)) as orchestrator:
        result = orchestrator.solve("a?", "tot", **{**ONE_WAVE, **options})
    assert result.skips.decisions == 0 and result.cost.verified > 0
    assert any("cgee skipped nothing" in text and words in text for text in result.warnings)


def test_flips_found_by_audits_switch_the_rule_off_for_all_later_calls(tmp_path: Path):
    """Branches agree on 1, the verifier prefers the one that says 2: every skip is a flip."""
    texts = ["Answer: 1"] * 7 + ["Answer: 2"]

    def script(path, served):
        text = texts[served % 8] + " " * served
        return Branch(tuple(text.encode()), text, "eos", confidence=0.5)

    def engine() -> ScriptedEngine:
        return ScriptedEngine(script, judge=lambda path, q: 0.9 if "2" in path[-1] else 0.1)

    own = {"engine": engine, "runtime": "inline", **WHOLE}
    with Orchestrator(**own) as orchestrator:
        recorded(tmp_path / "r.json", orchestrator)
    with Orchestrator(cgee_record=str(tmp_path / "r.json"), cgee_audit=1.0, **own) as orchestrator:
        results = [orchestrator.solve(f"{i}?", "tot", **ONE_WAVE) for i in range(5)]
    assert [result.answer for result in results] == ["2"] * 5
    flips = sum(result.skips.flips for result in results)
    assert 1 <= flips == sum(result.skips.audited for result in results) < 5
    assert "switched off" in results[-1].warnings[0]
    assert results[-1].skips.decisions == 0


# -- parts ---------------------------------------------------------------------------------------------------------
def test_the_template_is_what_the_model_is_shown():
    prompts = (ChatPrompt(), ChatPrompt("x"), ChatPrompt(instruction="x"))
    keys = {template_key(ByteCodec(), prompt) for prompt in prompts}
    assert len(keys) == 3
    assert template_key(ByteCodec(), ChatPrompt()) in keys

    class Beginning(ByteCodec):
        def begin(self, messages):
            return [7, *self.encode(self.render(messages))]

    assert template_key(Beginning(), ChatPrompt()) not in keys


def test_a_records_dtype_is_never_auto():
    pytest.importorskip("torch")
    assert with_known_dtype(Config.create(device="cpu")).dtype == "float32"
    assert with_known_dtype(Config.create(device="cpu", dtype="bfloat16")).dtype == "bfloat16"
    assert with_known_dtype(Config.create(model="simulated")).dtype == "auto"


def test_yaml_reads_a_bare_off_as_a_name(tmp_path: Path, capsys):
    file = tmp_path / "run.yaml"
    file.write_text("model: simulated\nruntime: inline\ncgee: off\n")
    with pytest.raises(SystemExit) as stop:
        main(["solve", "a?", "--config", str(file), "-q"])
    assert not stop.value.code, capsys.readouterr().err


# -- command line --------------------------------------------------------------------------------------------------
def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["solve", *arguments, "--model", "simulated", "--runtime", "inline", "-q"])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_flag_and_what_it_shows(capsys):
    code, out, _ = run(capsys, "What is 4 + 5?", "--cgee", "paper")
    assert code == 0
    assert " verifications skipped; " in out and "  ~0." in out
    code, out, _ = run(capsys, "What is 4 + 5?", "--cgee", "paper", "--json")
    assert json.loads(out)["skips"]["by_rule"]["paper"] > 0
    code, out, _ = run(capsys, "What is 4 + 5?")
    assert "skipped" not in out


def test_a_record_of_another_setting_is_exit_2(capsys, path: Path):
    code, out, err = run(capsys, "a?", "--cgee-record", str(path), "--set", "family=arc")
    assert (code, out) == (2, "")
    assert "family: record 'general', here 'arc'" in err
    broken = json.loads(path.read_text())
    path.write_text(json.dumps({**broken, "n": 10}))
    code, _, err = run(capsys, "a?", "--cgee-record", str(path))
    assert code == 2 and "does not support its claim" in err
