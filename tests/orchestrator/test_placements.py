"""`explain`: why a node was grown on its engine, from what a batch job recorded."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("typer")

from actors.placement import Placed
from orchestrator import Orchestrator
from orchestrator.batch.events import read_events
from orchestrator.cli import main
from orchestrator.placements import cost_of, plain

PLACED = Placed("p/r/0", "engine-1", 40, 0.5, 0.25, 2.0, 0.125)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": f"p{i}", "question": f"What is {i} + 5?"}) + "\n" for i in range(2)))
    with Orchestrator(model="simulated", engines=2, runtime="inline") as orchestrator:
        orchestrator.run_batch(rows, tmp_path / "out", "tot", b=2, k=2, max_depth=3)
    return tmp_path / "out"


def explained(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["explain", *map(str, arguments)])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_every_node_can_be_explained_and_the_terms_are_those_recorded(job: Path, capsys):
    events = job / "runs" / "tot" / "events.jsonl"
    decisions = {d["id"]: d for e in read_events(events, frozenset({"placement"})) for d in e["decisions"]}
    nodes = [(e["problem"], e["node"], e["engine"]) for e in read_events(events, frozenset({"node"}))]
    assert len(nodes) > 4
    for problem, node, engine in nodes:
        code, out, err = explained(capsys, job, problem, node)
        assert (code, err) == (0, "")
        first, chosen, head, taken, *_, last = out.splitlines()
        expansion = first.split(" expansion ")[1].split(" on ")[0]
        assert first == f"node {node} was grown by expansion {expansion} on {engine}"
        assert chosen == f"placed on {engine}; seconds by term:"
        assert head.split() == ["engine", "hit", "wait", "recompute", "decode", "away", "cost"]
        known = decisions[expansion]
        terms = [known[f"{name}_s"] for name in ("wait", "recompute", "decode", "away")]
        assert taken.split() == ["*", engine, str(known["predicted_hit"]), *(f"{t:.3f}" for t in [*terms, sum(terms)])]
        assert last.startswith(f"prefix tokens held: {known['predicted_hit']} predicted, ")


def test_what_cannot_be_explained_says_why(job: Path, capsys):
    for arguments, words in (
        ([job, "p0", "r"], "no node 'r' that an engine grew"),
        ([job, "p0", "r.99"], "no node 'r.99'"),
        ([job, "p9", "r.0"], "no tree of problem 'p9'"),
        ([job / "gone", "p0", "r.0"], "no folder of `run --out`"),
    ):
        code, out, err = explained(capsys, *arguments)
        assert (code, out) == (2, "") and words in err
    (job / "runs" / "tot" / "events.jsonl").write_text("")
    assert "no placement of 'p0/r/0' on record" in explained(capsys, job, "p0", "r.0")[2]


def test_an_order_placed_again_shows_every_try_and_the_rivals(job: Path, capsys):
    decision = {**plain(PLACED), "id": "p0/r/0"}
    rival = {**decision, "actor": "engine-0", "predicted_hit": 0, "recompute_s": 3.0}
    events = [
        {"v": 1, "t": 1.0, "kind": "placement", "problem": "p0", "decisions": [decision]},
        {"v": 1, "t": 2.0, "kind": "placement", "problem": "p1", "decisions": [decision]},
        {"v": 1, "t": 3.0, "kind": "placement", "problem": "p0", "decisions": [{**decision, "rivals": [rival]}]},
    ]
    (job / "runs" / "tot" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    lines = explained(capsys, job, "p0", "r.0")[1].splitlines()
    assert [line for line in lines if line.startswith("placed")] == [
        "placed on engine-1 (try 1 of 2); seconds by term:",
        "placed on engine-1 (try 2 of 2); seconds by term:",
    ]
    taken, other = lines[-3:-1]
    assert taken.split() == ["*", "engine-1", "40", "0.500", "0.250", "2.000", "0.125", "2.875"]
    assert other.split() == ["engine-0", "0", "0.500", "3.000", "2.000", "0.125", "5.625"]


@dataclass(frozen=True)
class Wider(Placed):
    """As a placement with more terms may be."""

    transfer_s: float = 0.0
    rivals: tuple[Placed, ...] = ()


def test_a_decision_as_json_keeps_every_term_and_the_cheapest_rivals():
    others = tuple(Placed("x", f"e{i}", 0, float(i), 0.0, 0.0, 0.0) for i in reversed(range(20)))
    row = plain(Wider("x", "e", 1, 1 / 3, 0.0, 0.0, 0.0, 0.5, others))
    assert row["wait_s"] == 0.333333 and row["transfer_s"] == 0.5 and cost_of(row) == pytest.approx(0.833333)
    assert [rival["actor"] for rival in row["rivals"]] == [f"e{i}" for i in range(8)]
    assert json.loads(json.dumps(row)) == row
