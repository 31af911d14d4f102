"""The sharing benchmark: its statistics on made-up times, and one real tiny run."""

import json
from pathlib import Path

import pytest

from bench.conditions import Outcome
from bench.harness import Series, measure, ratio
from bench.report import rows, table
from bench.workload import Job, Point, Text
from engine.tokenizer import ByteCodec

POINT = Point(prefix=64, branches=2, new_tokens=4)


class Fake:
    """Answers at once and says that it took the next of `seconds`; notes what it was asked."""

    counting = False

    def __init__(self, seconds: list[float], answer: int = 7) -> None:
        self.seconds = iter(seconds)
        self.answer = answer
        self.calls: list[str] = []

    settings = property(lambda self: {"engine": "fake"})

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self) -> None:
        self.calls.append("end")

    def expand(self, job: Job) -> Outcome:
        self.calls.append(f"{len(job.shared)}/{job.new_tokens}")
        tokens = [[self.answer] * job.new_tokens for _ in job.hints]
        return Outcome(tokens, next(self.seconds), 10 if self.counting else None, 100)


def made_up(cold: list[float], second: list[float], answer: int = 7) -> Fake:
    """Warm-up first: a round, then an expansion by one token."""
    measured = [s for pair in zip(cold, second, strict=True) for s in pair]
    return Fake([9.0, 0.5, 0.25, *measured], answer)


def measured_rows(**conditions: Fake) -> dict[tuple[str, str], dict]:
    text = Text(ByteCodec())
    series = measure(conditions, lambda: text.job(POINT), rounds=3)
    return {(row["condition"], row["expansion"]): row for row in rows(series, POINT, token_bytes=1)}


def test_ratio_is_of_medians_with_the_spread_over_rounds():
    found = ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0])
    assert (found.median, found.low, found.high) == (4 / 3, 1.0, 3.0)


def test_rows_tell_medians_ratios_and_counts_of_the_warm_up():
    slow, ours = made_up([4.0, 8.0, 6.0], [3.0, 3.0, 3.0]), made_up([2.0, 2.0, 4.0], [1.0, 1.0, 1.0])
    found = measured_rows(slow=slow, rksc=ours)
    row = found["slow", "cold"]
    assert (row["seconds_median"], row["seconds_all"]) == (6.0, [4.0, 8.0, 6.0])
    assert (row["times_rksc"], row["times_rksc_low"], row["times_rksc_high"]) == (3.0, 1.5, 4.0)
    assert (row["prefill_tokens"], row["peak_kv_bytes"], row["outputs_equal"]) == (10, 100, True)
    assert row["decode_tokens_per_s"] == 2 * 3 / (6.0 - 0.25)
    assert found["slow", "second"]["decode_tokens_per_s"] == 2 * 3 / (3.0 - 0.5)
    assert found["rksc", "cold"]["distinct_kv_bytes"] == 64 + 2 * (8 + 4)


def test_each_round_begins_and_ends_and_goes_on_below_the_first_branch():
    fake = made_up([1.0] * 3, [1.0] * 3)
    measured_rows(rksc=fake)
    warm_up = ["begin", "1/4", "3/1", "end", "begin", "1/1", "end"]
    assert fake.calls == warm_up + ["begin", "1/4", "3/4", "end"] * 3


def test_different_outputs_are_told_not_hidden():
    found = measured_rows(rksc=made_up([1.0] * 3, [1.0] * 3), other=made_up([1.0] * 3, [1.0] * 3, answer=8))
    row = found["other", "cold"]
    assert (row["outputs_equal"], row["branches_equal"], row["branches_compared"]) == (False, 0, 6)
    assert "0 of 6" in table(list(found.values()))


def test_without_rksc_there_is_no_ratio():
    row = measured_rows(other=made_up([1.0] * 3, [1.0] * 3))["other", "cold"]
    assert row["times_rksc"] is None
    assert row["outputs_equal"]


def test_no_decode_speed_from_times_that_cannot_tell():
    outcome = Outcome([[1, 2]], 1.0, None, 0)
    assert Series(None, first_token_s=1.5, outcomes=[outcome]).decode_tokens_per_s is None


def test_jobs_share_no_first_token_and_hints_differ_at_once():
    text = Text(ByteCodec())
    jobs = [text.job(POINT) for _ in range(5)]
    assert len({job.prefix[0] for job in jobs}) == 5
    assert {len(job.prefix) for job in jobs} == {64}
    hints = text.hints(32)
    assert len({hint[0] for hint in hints}) == 32
    assert {len(hint) for hint in hints} == {8}
    with pytest.raises(ValueError, match="distinct"):
        text.hints(1000)


def test_a_tiny_run_has_equal_outputs_and_the_documented_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("torch")
    from bench.sharing import main
    from tests.tiny import save_tiny_llama

    model = save_tiny_llama(tmp_path / "llama")
    size = ["--prefix", "64", "--branches", "2", "--new-tokens", "4", "--rounds", "1"]
    names = ["--conditions", "no-kv,exact-cache,exact-cache-vllm,rksc", "--vllm-python", "/nowhere/python"]
    assert main([*size, *names, "--model", str(model), "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [s["condition"] for s in result["skipped"]] == ["exact-cache-vllm"]
    assert "/nowhere/python" in result["skipped"][0]["reason"]
    rows = {(row["condition"], row["expansion"]): row for row in result["rows"]}
    assert set(rows) == {(c, e) for c in ("no-kv", "exact-cache", "rksc") for e in ("cold", "second")}
    for row in rows.values():
        assert row["outputs_equal"] is True
        assert (row["prefix"], row["branches"], len(row["seconds_all"])) == (64, 2, 1)
        assert row["seconds_median"] == row["seconds_all"][0] > 0
        assert row["times_rksc_low"] <= row["times_rksc"] <= row["times_rksc_high"]
        assert row["peak_kv_bytes"] > 0
    prefilled = {key: row["prefill_tokens"] for key, row in rows.items()}
    assert prefilled["no-kv", "cold"] == 2 * (64 + 8)
    assert prefilled["exact-cache", "cold"] == prefilled["rksc", "cold"] == 64 + 2 * 8
    assert prefilled["exact-cache", "second"] == 1 + 2 * 8
    assert {"torch", "transformers", "threads", "dtype", "cpu", "load_average"} <= set(result["config"])


def test_unknown_conditions_are_refused_by_name(capsys: pytest.CaptureFixture[str]):
    from bench.sharing import main

    with pytest.raises(SystemExit):
        main(["--conditions", "no-kv,magic"])
    assert "'magic'" in capsys.readouterr().err
