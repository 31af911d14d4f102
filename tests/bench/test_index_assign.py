"""`bench.index.assign`: rows of every kind, and a verdict that follows the median."""

from bench.index import assign


def test_rows_say_what_was_measured(monkeypatch):
    monkeypatch.setattr(assign, "ENGINES", (64, 80))
    monkeypatch.setattr(assign, "REQUIRED_MS", 1e9)
    rows = assign.measure(1, lambda what: None)
    assert [(row["engines"], row["kind"]) for row in rows] == [
        (64, "one tree"),
        (64, "64 trees"),
        (80, "one tree"),
        (80, "64 trees"),
    ]
    assert all(row["median_ms"] > 0 and row["branches"] == 256 and row["reached"] for row in rows)
    monkeypatch.setattr(assign, "REQUIRED_MS", 0.0)
    assert [row["reached"] for row in assign.measure(1, lambda what: None)] == [False, True, True, True]
    assert "over 64 engines" in assign.line(rows[0])
