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
from orchestrator.placements import plain

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
    placements = read_events(events, frozenset({"placement"}))
    decisions = {(d["id"], d["actor"]): d for e in placements for d in e["decisions"]}
    nodes = [(e["problem"], e["node"], e["engine"]) for e in read_events(events, frozenset({"node"}))]
    assert len(nodes) > 4
    for problem, node, engine in nodes:
        code, out, err = explained(capsys, job, problem, node)
        assert (code, err) == (0, "")
        first, *tries, last = out.splitlines()
        at = max(i for i, line in enumerate(tries) if line.startswith(f"placed on {engine}"))  # an idle one may take it
        chosen, head, taken = tries[at : at + 3]
        expansion = first.split(" expansion ")[1].split(" on ")[0]
        assert first == f"node {node} was grown by expansion {expansion} on {engine}"
        assert chosen.endswith("; seconds by term:")
        assert {"wait", "recompute", "decode", "away", "cost"} < set(head.split())
        known = decisions[expansion, engine]
        shown = dict(zip(head.split(), taken.removeprefix("* ").split(), strict=True))
        assert (shown.pop("engine"), shown.pop("hit")) == (engine, str(known["predicted_hit"]))
        numbers = {name: text for name, text in shown.items() if text != "-"}
        assert numbers == {name: f"{known[name + '_s']:.3f}" for name in numbers}
        held = known["available"] if known["source"] else known["predicted_hit"]  # KV is brought before the call
        assert last.startswith(f"prefix tokens held: {held} predicted, ")


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
    rival = {**decision, "actor": "engine-0", "predicted_hit": 0, "recompute_s": 3.0, "cost_s": 5.625}
    events = [
        {"v": 1, "t": 1.0, "kind": "placement", "problem": "p0", "decisions": [decision]},
        {"v": 1, "t": 2.0, "kind": "placement", "problem": "p1", "decisions": [decision]},
        {"v": 1, "t": 3.0, "kind": "placement", "problem": "p0", "decisions": [{**decision, "rivals": [rival]}]},
    ]
    (job / "runs" / "tot" / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    lines = explained(capsys, job, "p0", "r.0")[1].splitlines()
    placed = [line.split("; ")[0] for line in lines if line.startswith("placed")]
    assert [line.split(" by ")[0].split(" among ")[0] for line in placed] == [
        "placed on engine-1 (try 1 of 2)",
        "placed on engine-1 (try 2 of 2)",
    ]
    taken, other = lines[-3:-1]
    assert taken.split() == ["*", "engine-1", "40", "0.500", "0.250", "2.000", "0.125", "2.875"]
    assert other.split() == ["engine-0", "0", "0.500", "3.000", "2.000", "0.125", "5.625"]


@dataclass(frozen=True, kw_only=True)
class Wider:
    """A placement with more terms than all have, as a policy may give it."""

    id: str = "p0/r/0"
    actor: str = "e"
    predicted_hit: int = 1
    wait_s: float = 1 / 3
    recompute_s: float = 2.0
    transfer_s: float | None = 0.5
    decode_s: float = 0.0
    away_s: float = 0.0
    source: str = "e9"
    policy: str = "rsbcm"
    candidates: int = 4
    runner_up: str = "e3"
    runner_up_s: float = 7.0
    rivals: tuple["Wider", ...] = ()

    @property
    def cost_s(self) -> float:
        return self.wait_s + min(self.recompute_s, self.transfer_s or self.recompute_s)


def test_a_decision_keeps_every_term_and_its_cheapest_rivals(job: Path, capsys):
    others = tuple(Wider(actor=f"e{i}", wait_s=float(i), transfer_s=None, runner_up="") for i in reversed(range(20)))
    row = plain(Wider(rivals=others))
    assert (row["wait_s"], row["transfer_s"], row["cost_s"]) == (0.333333, 0.5, 0.833333)
    assert [rival["actor"] for rival in row["rivals"]] == [f"e{i}" for i in range(8)]
    assert json.loads(json.dumps(row)) == {**row, "rivals": [{**rival, "rivals": []} for rival in row["rivals"]]}
    event = {"v": 1, "t": 1.0, "kind": "placement", "problem": "p0", "decisions": [row]}
    (job / "runs" / "tot" / "events.jsonl").write_text(json.dumps(event) + "\n")
    _, chosen, head, taken, first, *_, runner_up, _ = explained(capsys, job, "p0", "r.0")[1].splitlines()
    assert chosen == "placed on e by rsbcm among 4 engines, KV from e9; seconds by term:"
    assert head.split() == ["engine", "hit", "wait", "recompute", "transfer", "decode", "away", "cost"]
    assert taken.split() == ["*", "e", "1", "0.333", "2.000", "0.500", "0.000", "0.000", "0.833"]
    assert first.split() == ["e0", "1", "0.000", "2.000", "-", "0.000", "0.000", "2.000"]
    assert runner_up == "next best: e3, 7.000"
