"""Output and input at URLs: in memory in this process, and at one of fsspec's file systems by killed processes."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pydantic")
fsspec = pytest.importorskip("fsspec")

from orchestrator import JobOptions, Orchestrator, UsageError
from orchestrator.batch import mirror
from orchestrator.batch.inputs import BatchInput
from orchestrator.batch.journal import StorageError
from orchestrator.batch.output import read
from orchestrator.batch.places import InputFile, RemoteFolder, is_remote, local_path
from orchestrator.batch.stop import Stop
from orchestrator.cli import main
from tests.orchestrator.batch.jobs import INLINE, plain
from tests.orchestrator.batch.killing import assert_same_rows, generated, killed_at, results, start

FAST = 0.1


@pytest.fixture
def url():
    yield "memory://bucket/run"
    if (memory := fsspec.filesystem("memory")).exists("/bucket"):
        memory.rm("/bucket", recursive=True)


def run(rows, out, spool: Path, strategy="mcts", config=None, stop=None, on_event=None, **job):
    options = JobOptions(spool=spool, upload_s=job.pop("upload_s", FAST), **job)
    with Orchestrator(**{**INLINE, **(config or {})}) as orchestrator:
        return orchestrator.run_batch(rows, str(out), strategy, job=options, halt=stop, on_event=on_event)


def rows_at(url: str) -> list[dict]:
    with read(url) as folder:
        return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def _exit(command: list[str]) -> int:
    with pytest.raises(SystemExit) as code:
        main(command)
    return code.value.code


def test_a_url_holds_what_a_folder_would(write_rows, read_rows, tmp_path: Path, url: str, capsys):
    rows = write_rows(6)
    run(rows, tmp_path / "here", tmp_path)
    summary = run(rows, url, tmp_path / "spool")
    assert (summary.rows, summary.stop) == (6, None)
    assert plain(rows_at(url)) == plain(read_rows(tmp_path / "here"))
    here = {p.relative_to(tmp_path / "here").as_posix() for p in (tmp_path / "here").rglob("*") if p.is_file()}
    assert set(RemoteFolder(url).names()) == here
    assert not any((tmp_path / "spool").iterdir())
    again = run(rows, url, tmp_path / "other")
    assert (again.skipped, again.tokens) == (6, 0)
    for command in (
        ["status", url],
        ["show", url, "p1"],
        ["explain", url, "p1", "r.0"],
        ["diff", url, url],
        ["report", url],
    ):
        assert _exit(command) == 0, capsys.readouterr()
    assert "ended" in capsys.readouterr().out
    assert b"<html" in RemoteFolder(url).read("report.html")
    assert _exit(["status", url, "--watch"]) == 2 and _exit(["status", "memory://nothing/here"]) == 2


def test_a_paused_job_goes_on_from_the_url_on_another_machine(write_rows, read_rows, tmp_path: Path, url: str):
    rows, stop, waves = write_rows(12), Stop(), [0]
    whole = run(rows, tmp_path / "whole", tmp_path)

    def pause(event):
        waves[0] += event.kind == "wave"
        if waves[0] == 20:
            stop.set("test")

    first = run(rows, url, tmp_path / "a", config={"concurrency": 3}, stop=stop, on_event=pause)
    second = run(rows, url, tmp_path / "b")
    assert (first.stop, second.stop, second.skipped) == ("test", None, first.rows) and first.rows < 12
    assert first.tokens + second.tokens == whole.tokens
    assert plain(rows_at(url)) == plain(read_rows(tmp_path / "whole"))


def test_long_files_are_segments_of_which_only_the_last_changes(tmp_path: Path, url: str, monkeypatch):
    monkeypatch.setattr(mirror, "SEGMENT", 100)
    remote, written = RemoteFolder(url), []
    real = RemoteFolder.write
    monkeypatch.setattr(RemoteFolder, "write", lambda self, name, data: written.append(name) or real(self, name, data))
    copy = mirror.Mirror(remote, tmp_path / "spool", ("results.jsonl", "runs/a/"), 1000.0, lambda error: None)
    copy.begin()
    (copy.spool / "runs" / "a").mkdir(parents=True)
    (copy.spool / "runs" / "a" / "run.json").write_text("{}")
    file, whole, draw = copy.spool / "results.jsonl", b"", random.Random(3)
    for _ in range(30):
        more = draw.randbytes(draw.randrange(1, 60))
        before, whole = len(whole), whole + more
        file.write_bytes(whole)
        written.clear()
        copy.push()
        touched = {name for name in written if name.startswith("results.jsonl") and not name.endswith(".owner")}
        first, last = before // 100, (len(whole) - 1) // 100
        assert touched <= {mirror._object("results.jsonl", i) for i in range(first, last + 1)}
        with read(url) as folder:
            assert (folder / "results.jsonl").read_bytes() == whole
    for cut in (whole[:350], b"", b"x" * 230):
        file.write_bytes(cut)
        copy.push()
        with read(url) as folder:
            assert (folder / "results.jsonl").read_bytes() == cut
    file.unlink()
    copy.end()
    assert remote.names() == ["runs/a/run.json"]


def test_a_run_that_another_process_writes_is_left_alone(write_rows, tmp_path: Path, url: str):
    rows, refused = write_rows(4), []

    def second(event):
        if event.kind == "row" and not refused:
            for spool in ("a", "b"):  # on the same machine, and on another one
                with pytest.raises(UsageError, match="being written by another") as error:
                    run(rows, url, tmp_path / spool)
                refused.append(str(error.value))

    slow = {"concurrency": 1, "simulated": {"per_call_s": 0.02, "realtime": True}}
    assert run(rows, url, tmp_path / "a", on_event=second, config=slow).rows == 4
    assert "on this machine" in refused[0] and "stop it" in refused[1]


def test_a_process_that_lost_its_run_stops(write_rows, tmp_path: Path, url: str):
    def taken(event):
        if event.kind == "row":
            RemoteFolder(url).write("results.jsonl.owner", b"another 1 0.1")

    with pytest.raises(StorageError, match="another process has taken over"):
        run(write_rows(40), url, tmp_path, on_event=taken, config={"simulated": {"per_call_s": 0.02, "realtime": True}})


def test_uploads_that_fail_pause_the_job_and_nothing_of_it_is_lost(write_rows, tmp_path: Path, url: str, monkeypatch):
    rows, real, seen = write_rows(12), RemoteFolder.write, []
    whole = run(rows, tmp_path / "whole", tmp_path)

    def refuse(self, name, data):
        if seen:
            raise OSError(28, "the bucket is full")
        real(self, name, data)

    monkeypatch.setattr(RemoteFolder, "write", refuse)
    slow = {"concurrency": 2, "simulated": {"per_call_s": 0.02, "realtime": True}}
    tokens = []

    def watch(event):
        seen.extend([event] if event.kind == "row" else [])
        tokens.extend([event.data["tokens"]] if event.kind == "end" else [])

    with pytest.raises(StorageError, match="the bucket is full"):
        run(rows, url, tmp_path / "spool", on_event=watch, config=slow)
    monkeypatch.setattr(RemoteFolder, "write", real)
    second = run(rows, url, tmp_path / "spool", config=slow)
    assert second.rows == 12 and tokens[0] + second.tokens == whole.tokens


def _killed(monkeypatch, *call, after: int, **options):
    """A process that is killed after so many waves: nothing more is uploaded, its spool and its owner object stay."""
    stop, waves = Stop(), [0]

    def pause(event):
        waves[0] += event.kind == "wave"
        if waves[0] >= after:
            stop.set("killed")

    def end(self):
        self._ending.set()
        self._thread.join()
        self._lock.close()

    with monkeypatch.context() as patch:
        patch.setattr(mirror.Mirror, "end", end)
        return run(*call, stop=stop, on_event=pause, upload_s=1000.0, **options)


def test_another_run_at_the_url_neither_takes_a_killed_ones_files_nor_has_its_own_removed(
    write_rows, read_rows, tmp_path: Path, url: str, monkeypatch
):
    rows, stop, waves, spool = write_rows(6), Stop(), [0], tmp_path / "spool"
    whole = {name: run(rows, tmp_path / "whole", tmp_path, name) for name in ("mcts", "tot")}

    def pause(event):
        waves[0] += event.kind == "wave"
        if waves[0] == 14:
            stop.set("test")

    first = run(rows, url, spool, "mcts", {"concurrency": 2}, stop, pause)
    killed = _killed(monkeypatch, rows, url, spool, "tot", {"concurrency": 2}, after=7)
    assert first.rows and killed.rows
    second = run(rows, url, spool, "mcts")
    third = run(rows, url, spool, "tot")
    assert first.tokens + second.tokens == whole["mcts"].tokens
    assert killed.tokens + third.tokens == whole["tot"].tokens
    there = {name: [row for row in rows_at(url) if row["run"] == name] for name in whole}
    here = {name: [row for row in read_rows(tmp_path / "whole") if row["run"] == name] for name in whole}
    assert {name: plain(found) for name, found in there.items()} == {n: plain(found) for n, found in here.items()}
    assert [len(found) for found in there.values()] == [6, 6]
    for name in whole:
        journals = [at for at in RemoteFolder(url).names() if at.startswith(f"runs/{name}/journal")]
        assert len(journals) == 6


def test_a_process_killed_as_it_takes_up_a_spool_leaves_it_to_the_next(
    write_rows, tmp_path: Path, url: str, monkeypatch
):
    rows, spool = write_rows(6), tmp_path / "spool"
    whole = run(rows, tmp_path / "whole", tmp_path)
    first = _killed(monkeypatch, rows, url, spool, config={"concurrency": 2}, after=12)
    real = mirror.Mirror._beat

    def killed(self):
        real(self)
        self._lock.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mirror.Mirror, "_beat", killed)
        with pytest.raises(KeyboardInterrupt):
            run(rows, url, spool)
    assert first.tokens and first.tokens + run(rows, url, spool).tokens == whole.tokens


def test_a_row_that_comes_while_files_are_uploaded_waits_for_its_journal(tmp_path: Path, url: str, monkeypatch):
    copy = mirror.Mirror(RemoteFolder(url), tmp_path, ("results.jsonl", "runs/a/"), 1000.0, lambda error: None)
    copy.begin()
    journals = copy.spool / "runs/a/journal"
    journals.mkdir(parents=True)
    (journals / "1.journal").write_text("1")
    (copy.spool / "results.jsonl").write_text("row 1\n")
    real = RemoteFolder.write

    def write(self, name, data):
        if name.endswith("1.journal"):
            (journals / "2.journal").write_text("2")
            (copy.spool / "results.jsonl").write_text("row 1\nrow 2\n")
        real(self, name, data)

    monkeypatch.setattr(RemoteFolder, "write", write)
    copy.push()
    assert RemoteFolder(url).read("results.jsonl") == b"row 1\n"
    copy.push()
    assert RemoteFolder(url).read("results.jsonl") == b"row 1\nrow 2\n"
    assert RemoteFolder(url).read("runs/a/journal/2.journal") == b"2"
    copy.end()


def test_places():
    assert is_remote("s3://a/b") and is_remote("simplecache::s3://a") and not is_remote("file:///a/b")
    assert local_path("file:///a/b") == Path("/a/b") and local_path("a/b") == Path("a/b")
    for name, words in (("s3://bucket/x", "s3fs"), ("nonsense://x", "nonsense")):
        with pytest.raises(UsageError, match=words):
            RemoteFolder(name)


def test_inputs_at_a_url(url: str):
    remote = RemoteFolder(url)
    remote.write("b.jsonl", b'{"question": "b?"}\n')
    remote.write("a.csv", "question,answer\nä?,1\n".encode())
    assert [row.problem.text for row in BatchInput.open(f"{url}/b.jsonl").rows()] == ["b?"]
    both = BatchInput.open(f"{url}/*")
    assert [(row.id, row.problem.text) for row in both.rows()] == [("a.csv:1", "ä?"), ("b.jsonl:1", "b?")]
    assert both.count() is None
    with pytest.raises(UsageError, match="no such file"):
        BatchInput.open(f"{url}/gone.jsonl")
    assert InputFile("x/a.JSONL.gz").suffix == ".jsonl.gz"


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["the spool is there", "the machine is lost"])
def test_case_69_killed_with_an_output_at_a_url(tmp_path: Path, lost: bool, monkeypatch):
    """What has been uploaded lasts; what has not is there as long as the machine's disk is."""
    monkeypatch.setenv("RKSC_CACHE", str(tmp_path / "cache"))
    n, rows, log = 60, tmp_path / "rows.jsonl", tmp_path / "killed.log"
    rows.write_text("".join(json.dumps({"id": i, "question": f"What is {i} + {i}?"}) + "\n" for i in range(n)))
    assert start(rows, tmp_path / "calm", tmp_path / "calm.log").wait(600) == 0
    (tmp_path / "store").mkdir()
    out = f"dir::file://{tmp_path}/store"

    def here() -> Path:
        spools = list((tmp_path / "cache" / "rksc" / "spool").glob("*"))
        return spools[0] if spools else tmp_path / "none"

    for target in (10, 30):
        killed_at(target, 0.02, rows, out, log, watched=here, done_again=lost)
        if lost:
            shutil.rmtree(tmp_path / "cache")
    assert start(rows, out, log).wait(600) == 0
    with read(out) as folder:
        assert_same_rows(tmp_path / "calm", folder, n)
    share = generated(log) / generated(tmp_path / "calm.log")
    print(f"{share:.3f} of one pass")
    assert lost or share <= 1.05  # with the machine goes what was done since the last upload
    assert not os.path.exists(here()) and len(results(tmp_path / "calm")) == n
