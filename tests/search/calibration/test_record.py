"""Calibration records: saved and read back, refused when unsound or for another setting."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from search.calibration.binomial import upper_bound
from search.calibration.record import RecordError, load, save
from tests.search.records import record


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    for one in (record(), record(thresholds=None, k=2, flips=2), record(loss="harm", flips=5, harms=0)):
        save(one, path)
        assert load(path) == one
    assert list(tmp_path.iterdir()) == [path]


def test_another_setting_is_refused_with_the_differing_fields() -> None:
    one = record()
    one.require(one.setting)
    with pytest.raises(RecordError) as refused:
        one.require(replace(one.setting, dtype="bfloat16", family="gsm8k"))
    assert str(refused.value) == (
        "calibration record is for another setting: dtype: record 'float32', here 'bfloat16'; "
        "family: record 'general', here 'gsm8k'"
    )
    for name in ("model", "template", "verifier"):
        with pytest.raises(RecordError, match=f"{name}: record"):
            one.require(replace(one.setting, **{name: "other"}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 298}, "does not support its claim: 0 losses in 298 decisions"),
        ({"alpha": 0.005}, "does not support its claim"),
        ({"k": 2, "flips": 2}, "2 losses in 300 decisions"),
        ({"k": 1}, "k=1, but its flips are another number"),
        ({"loss": "harm", "harms": None}, "its harms are another number"),
        ({"loss": "pain"}, "choices: flip, harm"),
        ({"rule": "off"}, "cannot be calibrated"),
        ({"thresholds": {"tau": 1}}, "no option 'tau'"),
        ({"thresholds": {"gap": 7}}, "gap must be a number"),
        ({"alpha": 2.0}, "p must be in"),
        ({"n": "many"}, "not sound"),
        ({"version": 2}, "version 2, this program reads 1"),
    ],
)
def test_a_record_whose_numbers_do_not_hold_is_refused(changes, words: str) -> None:
    with pytest.raises(RecordError, match=words):
        record(**changes)


def _rewrite(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del values[key]
        else:
            values[key] = value
    path.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 9}, "version 9, this program reads 1"),
        ({"alpha": None}, "missing 'alpha'"),
        ({"alhpa": 0.1}, "unknown 'alhpa'"),
        ({"setting": {"model": "m"}}, "setting: missing 'dtype'"),
        ({"draw": 8}, "draw must be a JSON object, not a int"),
        ({"n": 10}, "does not support its claim"),
        ({"n": "many"}, "not sound"),
    ],
)
def test_files_that_are_no_record_say_why(tmp_path: Path, changes, words: str) -> None:
    path = tmp_path / "record.json"
    save(record(), path)
    _rewrite(path, **changes)
    with pytest.raises(RecordError, match=words) as refused:
        load(path)
    assert "record.json" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"), [("{", "not JSON"), ("[]", "must be a JSON object"), (b"\xff", "cannot be read")]
)
def test_files_that_are_no_json_say_why(tmp_path: Path, text, words: str) -> None:
    path = tmp_path / "record.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecordError, match=words):
        load(path)
    with pytest.raises(RecordError, match=r"gone\.json.*No such file"):
        load(tmp_path / "gone.json")


def test_audits_watch_alpha_or_the_flips_a_harm_record_saw() -> None:
    assert record().watched_rate == 0.01
    harm = record(loss="harm", flips=12, harms=0)
    assert harm.watched_rate == upper_bound(12, 300, 0.05) > 12 / 300
