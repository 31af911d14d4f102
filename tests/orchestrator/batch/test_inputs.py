"""Inputs: formats, columns, shards, what is wrong with a file, and what is wrong with a row. They stream."""

import gzip
import importlib.util
import json
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from orchestrator.batch import formats
from orchestrator.batch.formats import MAX_ROW_BYTES
from orchestrator.batch.inputs import BatchInput, Columns, Shard
from orchestrator.batch.places import InputFile
from orchestrator.config import UsageError

LINES = '{"id": "a", "question": "One?", "answer": 1}\n\n{"question": "Two?"}\n'


def facts(source: BatchInput, **more) -> list[tuple]:
    return [(r.id, r.problem and (r.problem.text, r.problem.reference), r.error) for r in source.rows(**more)]


def test_jsonl_plain_and_gz(tmp_path: Path):
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_bytes(b"\xef\xbb\xbf" + LINES.encode())
    packed.write_bytes(gzip.compress(LINES.encode()))
    expected = [("a", ("One?", "1"), None), ("3", ("Two?", None), None)]
    assert facts(BatchInput.open(str(plain))) == facts(BatchInput.open(str(packed))) == expected


def test_csv_with_mapped_columns(tmp_path: Path):
    file = tmp_path / "a.csv"
    file.write_text('nr,text,gold\n7,"One,\ntwo?",3\n8,,4\n9,Three?,\n', encoding="utf-8-sig")
    source = BatchInput.open(str(file), Columns("text", "gold", "nr"))
    rows = facts(source)
    assert rows[0] == ("7", ("One,\ntwo?", "3"), None)
    assert rows[1][0] == "8" and "empty" in rows[1][2]
    assert rows[2] == ("9", ("Three?", None), None)


def test_a_glob_reads_all_files_in_order_and_ids_do_not_collide(tmp_path: Path):
    for name in "ba":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"question": "{name}?"}}\n')
    rows = facts(BatchInput.open(str(tmp_path / "*.jsonl")))
    assert rows == [("a.jsonl:1", ("a?", None), None), ("b.jsonl:1", ("b?", None), None)]


def test_files_of_one_name_are_told_apart_by_their_folders_however_the_input_is_named(tmp_path: Path, monkeypatch):
    for name in ("train", "x/train", "y/train", "y/test"):
        (tmp_path / f"{name}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text('{"question": "One?"}\njunk\n')
    monkeypatch.chdir(tmp_path / "x")
    patterns = (str(tmp_path / "**/*.jsonl"), "../**/*.jsonl", "./../**/*.jsonl", f"file://{tmp_path}/**/*.jsonl")
    named = [[(row.id, row.key) for row in BatchInput.open(pattern).rows()] for pattern in patterns]
    assert all(sorted(rows) == sorted(named[0]) for rows in named)
    files = ("test.jsonl", f"{tmp_path.name}/train.jsonl", "x/train.jsonl", "y/train.jsonl")
    assert sorted(name for name, _ in named[0]) == sorted(f"{file}:{n}" for file in files for n in (1, 2))
    assert len({key for _, key in named[0]}) == 8
    alone = [[row.key for row in BatchInput.open(name).rows()] for name in ("train.jsonl", "../x/train.jsonl")]
    assert alone[0] == alone[1]


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is not None, reason="pyarrow is installed")
def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match="pip install pyarrow"):
        BatchInput.open(str(tmp_path / "a.parquet"))


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet(tmp_path: Path):
    import pyarrow
    from pyarrow.parquet import write_table

    write_table(pyarrow.table({"question": ["One?", None], "answer": [1, 2]}), tmp_path / "a.parquet")
    source = BatchInput.open(str(tmp_path / "a.parquet"))
    assert facts(source)[0] == ("1", ("One?", "1"), None)
    assert "no text" in facts(source)[1][2]
    assert source.count() == 2


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_a_parquet_file_that_is_damaged(tmp_path: Path):
    import pyarrow
    from pyarrow.parquet import write_table

    whole, cut, page = (tmp_path / f"{name}.parquet" for name in ("whole", "cut", "page"))
    write_table(pyarrow.table({"question": [f"{i}?" for i in range(1000)]}), whole)
    data = whole.read_bytes()
    cut.write_bytes(data[:-9])
    with pytest.raises(UsageError, match=r"cannot be read: '.*cut\.parquet': .*Parquet"):
        BatchInput.open(str(cut))
    with pytest.raises(OSError, match="Parquet"):
        BatchInput((InputFile(str(cut)),)).count()
    page.write_bytes(data[:4] + bytes(64) + data[68:])
    with pytest.raises(UsageError, match=r"cannot be read: '.*page\.parquet'"):
        BatchInput.open(str(page))


@pytest.mark.parametrize(
    ("name", "data", "columns", "words"),
    [
        ("gone.jsonl", None, {}, "no such file"),
        ("a.jsonl", b"", {}, "has no rows"),
        ("a.jsonl", b"\n\n", {}, "has no rows"),
        ("a.txt", b"x", {}, r"none of \.jsonl, "),
        ("a.csv", b"text,gold\n1,2\n", {}, "column 'question' is not in the input, which has: text, gold"),
        ("a.jsonl", b'{"question": "x"}\n', {"question": "prompt"}, "column 'prompt' is not in"),
        ("a.jsonl", b'{"question": "x"}\n', {"answer": "gold"}, "column 'gold' is not in"),
        ("a.jsonl.gz", b"no gzip", {}, r"cannot be read: '.*a\.jsonl\.gz': Not a gzipped file"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"question": "x"}\n', mtime=0)[:12],
            {},
            r"cannot be read: '.*a\.jsonl\.gz': Compressed",
        ),
        (
            "a.jsonl.gz",
            gzip.compress(b"x", mtime=0)[:10] + b"\xff" * 9,
            {},
            r"cannot be read: '.*a\.jsonl\.gz': Error -3",
        ),
    ],
)
def test_a_wrong_input_is_a_usage_error(tmp_path: Path, name, data, columns, words):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=words):
        BatchInput.open(str(tmp_path / name), Columns(**columns))
    with pytest.raises(UsageError, match="folder"):
        BatchInput.open(str(tmp_path))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"question": "a\xff"}', "not UTF-8"),
        (b'{"question": "a\\ud800"}', "not UTF-8"),
        (b"[1]", "no JSON object"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"question": "x", "answer": 1' + b"0" * 5000 + b"}", "too many digits"),
        (b'{"question": 5}', "no text under 'question'"),
        (b'{"text": "x"}', "no text under 'question'"),
        (b'{"question": "  "}', "empty"),
        (b'{"question": "' + b"x" * MAX_ROW_BYTES + b'"}', "more than"),
    ],
)
def test_a_wrong_row_is_a_row_and_the_next_one_is_read(tmp_path: Path, line: bytes, words: str):
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"question": "One?"}\n' + line + b'\n{"question": "Three?"}\n')
    rows = facts(BatchInput.open(str(file)))
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert rows[1][1] is None and words in rows[1][2]
    assert rows[0][2] is None and rows[2][1] == ("Three?", None)


def test_a_csv_row_that_is_not_utf8(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"question\nOne?\n\xff?\nThree?\n")
    rows = facts(BatchInput.open(str(tmp_path / "a.csv")))
    assert [bool(row[1]) for row in rows] == [True, False, True]
    assert "not UTF-8" in rows[1][2]


def test_shards_and_limit_cover_each_row_once(write_rows):
    source = BatchInput.open(str(write_rows(11)))
    parts = [[r.id for r in source.rows(limit=9, shard=Shard(i, 4))] for i in range(4)]
    assert parts[0] == ["p0", "p4", "p8"]
    assert sorted(name for part in parts for name in part) == sorted(f"p{i}" for i in range(9))
    assert [source.count(9, Shard(i, 4)) for i in range(4)] == [len(part) for part in parts]
    assert Shard.parse("3/4") == Shard(3, 4)
    for text in ("4/4", "1", "a/2", "-1/2", "1/0", ""):
        with pytest.raises(UsageError, match="i/n"):
            Shard.parse(text)


def test_keys_tell_rows_apart_by_what_they_say(write_rows):
    rows = [{"id": 1, "question": "a"}, {"id": 1, "question": "b"}, {"id": 1, "question": "a", "answer": 2}]
    keys = [row.key for row in BatchInput.open(str(write_rows([*rows, rows[0]]))).rows()]
    assert len(set(keys)) == 3 and keys[0] == keys[3]


def test_100_000_rows_stream(tmp_path: Path, monkeypatch):
    real, read = formats._json_row, [0]
    monkeypatch.setattr(formats, "_json_row", lambda *a: read.__setitem__(0, read[0] + 1) or real(*a))
    file = tmp_path / "large.jsonl"
    with file.open("w") as out:
        for i in range(100_000):
            out.write(json.dumps({"id": i, "question": f"What is {i}? " + "x" * 100}) + "\n")
    tracemalloc.start()
    source = BatchInput.open(str(file))
    assert next(source.rows()).id == "0" and read[0] < 10
    assert sum(1 for _ in islice(source.rows(), 20_000)) == 20_000
    assert source.count() == 100_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
