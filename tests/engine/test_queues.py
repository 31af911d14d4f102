"""What an engine says of its queue while it works: requests that wait, rows that decode."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from engine.base import BranchRequest, StepRule, stream_key
from engine.local import LocalEngine


def test_requests_that_do_not_fit_wait_and_rows_decode(tiny_llama: Path):
    engine = LocalEngine.load(str(tiny_llama), dtype="float32", device="cpu", max_rows=2)
    path = (tuple(engine.codec.encode("A short prompt.")),)
    seen, forward = [], engine.forward

    def watched(feeds):
        stats = engine.stats()
        seen.append((stats["waiting"], stats["decode_rows"]))
        return forward(feeds)

    engine._scheduler.forward = watched
    requests = [BranchRequest(n, path, (stream_key(n, 0), stream_key(n, 1)), StepRule(8, tokens=8)) for n in "abc"]
    assert all(result.error is None for result in engine.expand(requests))
    assert (2, 2) in seen and (1, 2) in seen and (0, 2) in seen
    assert (engine.stats()["waiting"], engine.stats()["decode_rows"]) == (0, 0)
    engine.check_integrity()
