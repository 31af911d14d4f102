"""Outcomes of the wave under way on disk: taken for what they are for, whatever a crash made of the file."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("msgpack")

from orchestrator.batch.frames import MAGIC
from orchestrator.batch.journal import Journal, read_journal
from orchestrator.batch.landed import LandedFile
from search.types import Cost, Outcome, Problem, Sample
from search.wave_log import WaveRecord

PROBLEM = Problem("What is 6 * 7?", "p")
OUTCOMES = [
    Outcome(f"p/r/{i}", "p", "r", (Sample(f"step {i}\ud800", (i, 2**31), "step", i),), "engine-0", Cost(i, 4))
    for i in range(3)
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = LandedFile(tmp_path / "a" / "p.landed", b"header")
    for outcome in OUTCOMES:
        file.keep(outcome)
    return file.path


def test_outcomes_come_back_as_they_were(path: Path):
    found = LandedFile(path, b"header")
    assert list(found.outcomes.values()) == OUTCOMES
    found.clear()
    assert not path.exists() and found.outcomes == {}


def test_another_problem_or_other_settings_get_none(path: Path):
    other = LandedFile(path, b"other")
    assert other.outcomes == {}
    other.keep(OUTCOMES[0])
    assert list(LandedFile(path, b"other").outcomes.values()) == OUTCOMES[:1]


def test_cut_or_flipped_at_any_byte_it_gives_whole_outcomes_only_and_can_go_on(path: Path):
    data = path.read_bytes()
    for at in range(len(data)):
        for changed in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]):
            path.write_bytes(changed)
            file = LandedFile(path, b"header")
            found = list(file.outcomes.values())
            assert found == OUTCOMES[: len(found)] and len(found) < 3
            file.keep(OUTCOMES[2])
            assert list(LandedFile(path, b"header").outcomes.values())[-1] == OUTCOMES[2]
    assert data.startswith(MAGIC)


def test_a_disk_that_cannot_be_written_costs_nothing_but_the_file(tmp_path: Path):
    (tmp_path / "a").write_text("a file where the folder should be")
    file = LandedFile(tmp_path / "a" / "p.landed", b"header")
    file.keep(OUTCOMES[0])
    assert LandedFile(tmp_path / "p.landed", b"header").outcomes == {}


def test_a_journal_keeps_them_until_their_wave_is_written(tmp_path: Path):
    path = tmp_path / "p.journal"
    journal = Journal(path, PROBLEM, "f", 3)
    journal.keep(OUTCOMES[0])
    again = Journal(path, PROBLEM, "f", 3)
    assert list(again.landed()) == ["p/r/0"] and again.waves() == ()
    assert not Journal(path, PROBLEM, "g", 3).landed() and not Journal(path, Problem("Other?", "p"), "f", 3).landed()
    asyncio.run(again.append(WaveRecord((OUTCOMES[0],))))
    assert not path.with_suffix(".landed").exists() and again.landed() == {}
    again.keep(OUTCOMES[1])
    assert len(read_journal(path).waves) == 1
    again.discard()
    assert not path.exists() and not path.with_suffix(".landed").exists()
