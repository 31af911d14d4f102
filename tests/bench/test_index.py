"""The benchmark of the index: what it feeds is sound, and what it says is what it counted."""

import json
import random

import pytest

from actors.messages import unpack
from bench.index import assign, ingest
from bench.index.__main__ import main


@pytest.mark.parametrize("kind", sorted(ingest.KINDS))
def test_messages_hold_as_many_changes_as_counted_and_the_index_takes_them(kind):
    messages = ingest.KINDS[kind](random.Random(1), 64 * 3 * 32, 32)
    batches = [unpack(data) for data in messages]
    assert len(batches) == 64 * 3
    assert {len(batch.added) + len(batch.dropped) for batch in batches} == {32}
    assert any(batch.dropped for batch in batches) == (kind == "steady")
    assert sum(batch.snapshot for batch in batches) == (64 if kind == "snapshots" else 0)
    seconds, cpu_s = ingest._ingest(messages)
    assert seconds > 0 and cpu_s > 0


def test_a_lost_message_is_no_result():
    messages = ingest.growing(random.Random(1), 64 * 3 * 32, 32)
    with pytest.raises(RuntimeError, match="resync"):
        ingest._ingest(messages[:64] + messages[65:])


def test_rows_are_printed_and_the_exit_status_tells_whether_the_figure_was_reached(capsys, monkeypatch):
    short = ["--entries", "4096", "--batch", "64", "--rounds", "2", "--waves", "1", "--json"]
    for required in (1, 10**12):
        monkeypatch.setattr(ingest, "REQUIRED", required)
        monkeypatch.setattr(assign, "REQUIRED_MS", 1e9 / required)
        monkeypatch.setattr(assign, "ENGINES", (64,))
        status = main(short)
        *lines, last = capsys.readouterr().out.splitlines()
        rows = json.loads(last)["rows"]
        assert [row["kind"] for row in rows] == [*ingest.KINDS, "one tree", "64 trees"]
        assert len(lines) == len(rows) and all(row.get("entries_per_s", 1) > 0 for row in rows)
        needed = [row for row in rows if row.get("required_ms", 1) is not None]
        assert status == int(required > 1) and all(row["reached"] == (required == 1) for row in needed)


def test_sizes_that_make_no_sense_are_refused(capsys):
    with pytest.raises(SystemExit) as refused:
        main(["--batch", "2"])
    assert refused.value.code == 2 and "at least 4 changes" in capsys.readouterr().err
