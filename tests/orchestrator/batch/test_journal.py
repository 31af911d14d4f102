"""Journals: what is read after a crash, after damage, and by another version; and replay through the strategy."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("msgpack")

from orchestrator.batch.frames import MAGIC, MAX_RECORD, append_frames, frame
from orchestrator.batch.journal import Journal, JournalError, journal_path, read_journal
from orchestrator.batch.records import BadRecordError, pack, to_plain, unpack, wave_from
from search.cgee.base import SkipReport
from search.types import Cost, Outcome, Problem, Sample, Verdict
from search.wave_log import WaveRecord

PROBLEM = Problem("What is 6 * 7?", "p\ud800", "number", "42")


def wave(i: int) -> WaveRecord:
    verdict = Verdict(None if i % 2 else 0.1 + i, "v", Cost(verified=3), "no", 0.5, "agreed")
    sample = Sample(f"step {i}\ud800\x00", (i, 2**31, 0), "eos", i, -0.3, 0.7, 2, verdict)
    cost = Cost(3, 4, 5, {"exact": 6}, 7, 8, {"decode": 0.1})
    outcomes = (Outcome(f"p/r/{i}", "p", "r", (sample,), "engine-0", cost), Outcome("p/r/9", "p", "r", error="down"))
    return WaveRecord(outcomes, cost, 2, 1.5 * i, ("w",), SkipReport(1, {"paper": 1}, 2, 3, 4, 5, 6, True), 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "p.journal"
    journal = Journal(path, PROBLEM, "f", 3)
    for i in range(3):
        asyncio.run(journal.append(wave(i)))
    return path


def test_everything_comes_back_as_it_was(path: Path):
    found = read_journal(path)
    assert found is not None
    assert (found.problem, found.fingerprint, found.seed) == (PROBLEM, "f", 3)
    assert found.waves == (wave(0), wave(1), wave(2))
    assert (found.torn, found.damage, found.finish, found.size) == (False, None, None, path.stat().st_size)
    asyncio.run(Journal(path, PROBLEM, "f", 3).close({"row": {"answer": "42"}}))
    assert read_journal(path).finish == {"row": {"answer": "42"}}


def test_token_ids_are_written_once_a_node(path: Path):
    assert path.read_bytes().count(pack([1, 2**31, 0])) == 1


def test_cut_at_every_byte_of_the_last_record_costs_that_record_only(path: Path):
    data = path.read_bytes()
    last = len(data) - len(frame(pack({"kind": "wave", **to_plain(wave(2))})))
    for end in range(last, len(data)):
        path.write_bytes(data[:end])
        found = read_journal(path)
        assert found.waves == (wave(0), wave(1)), end
        assert (found.torn, found.damage, found.size) == (end > last, None, last)
    journal = Journal(path, PROBLEM, "f", 3)
    asyncio.run(journal.append(wave(2)))
    assert path.read_bytes() == data
    assert not path.with_suffix(".damaged").exists()


def test_cut_within_the_header_is_a_journal_not_begun(path: Path):
    data = path.read_bytes()
    for end in range(len(MAGIC) + 20):
        path.write_bytes(data[:end])
        assert read_journal(path) is None
    asyncio.run(Journal(path, PROBLEM, "f", 3).append(wave(0)))
    assert read_journal(path).waves == (wave(0),)


def test_space_reserved_but_never_written_is_a_torn_record(path: Path):
    path.write_bytes(path.read_bytes() + bytes(4096))
    found = read_journal(path)
    assert (len(found.waves), found.torn, found.damage) == (3, True, None)


def test_a_flipped_bit_anywhere_keeps_what_is_whole_before_it_and_says_so(path: Path):
    data = path.read_bytes()
    starts = [len(MAGIC)]
    while starts[-1] < len(data):
        starts.append(starts[-1] + 12 + int.from_bytes(data[starts[-1] : starts[-1] + 4], "little"))
    for at in range(starts[1], len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        found = read_journal(path)
        whole = sum(start <= at for start in starts) - 2
        assert found.waves == tuple(wave(i) for i in range(whole)), at
        assert found.damage is not None and f"byte {starts[whole + 1]}" in found.damage
        assert not found.torn
    journal = Journal(path, PROBLEM, "f", 3)
    assert journal.damage == found.damage
    assert path.with_suffix(".damaged").read_bytes() == bytes(flipped)
    asyncio.run(journal.append(wave(2)))
    assert path.read_bytes() == data


def test_a_flipped_bit_in_the_header_is_refused(path: Path):
    data = bytearray(path.read_bytes())
    data[len(MAGIC) + 15] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalError, match="damaged from its start"):
        Journal(path, PROBLEM, "f", 3)


def test_other_versions_files_problems_and_settings_are_refused_by_name(path: Path):
    path.unlink()
    append_frames(path, [pack({"kind": "header", "schema": 99})], 0)
    with pytest.raises(JournalError, match=r"schema version 99, this program reads version 1"):
        read_journal(path)
    path.write_bytes(b"\x80\x04pickle")
    with pytest.raises(JournalError, match="not a journal"):
        read_journal(path)
    path.unlink()
    asyncio.run(Journal(path, PROBLEM, "f", 3).append(wave(0)))
    with pytest.raises(JournalError, match="another problem than row 'other' has now"):
        Journal(path, dataclasses.replace(PROBLEM, id="other"), "f", 3)
    with pytest.raises(JournalError, match="another question or answer than row"):
        Journal(path, dataclasses.replace(PROBLEM, text="Other?"), "f", 3)
    with pytest.raises(JournalError, match="other settings"):
        Journal(path, PROBLEM, "g", 3)


@pytest.mark.parametrize(
    "record",
    [{"kind": "wave"}, {"kind": "wave", "outcomes": 5}, {"kind": "wave", "outcomes": [{"new": 1}]}, {"kind": "x"}, [1]],
)
def test_whole_records_of_the_wrong_shape_are_refused(path: Path, record: object):
    append_frames(path, [pack(record)], path.stat().st_size)
    with pytest.raises(JournalError):
        read_journal(path)


def test_sizes_are_bounded(path: Path, monkeypatch):
    monkeypatch.setattr("orchestrator.batch.frames.MAX_FILE", path.stat().st_size - 1)
    with pytest.raises(JournalError, match="bytes exceed"):
        read_journal(path)
    with pytest.raises(ValueError, match="exceeds"):
        frame(bytes(MAX_RECORD + 1))
    for data in (b"\xdd\xff\xff\xff\xff", b"\xc9\x00\x00\x00\x01\x05x", b"", b"\xc1"):
        with pytest.raises(BadRecordError):
            unpack(data)
    assert wave_from(unpack(pack(to_plain(wave(1))))) == wave(1)


def test_journals_are_spread_over_folders(tmp_path: Path):
    paths = [journal_path(tmp_path, f"../{i}") for i in range(600)]
    assert len(set(paths)) == 600
    assert len({path.parent for path in paths}) > 200
    assert all(path.parent.parent == tmp_path for path in paths)
