"""show, diff, export and report on the command line, and what they make of hostile and half-grown runs."""

import io
import json
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from pathlib import Path

import networkx as nx
import pytest

pytest.importorskip("typer")

from engine.scripted import ScriptedEngine
from orchestrator import Orchestrator
from orchestrator.batch.folder import runs_of
from orchestrator.batch.job import JobOptions
from orchestrator.cli import main
from orchestrator.report.collect import facts_of, trees_of
from orchestrator.report.export import export
from orchestrator.report.harmless import escaped, script_json, visible
from orchestrator.report.layout import places, preorder
from orchestrator.report.plots import bars, histogram, running_share, timeline
from search.prompts import ChatPrompt
from search.types import Problem
from tests.orchestrator.report.hostile import HOSTILE


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_show_marks_the_winning_path_and_says_why(capsys, simulated):
    out = simulated(2)
    code, text, _ = call(capsys, "show", out, "p1")
    row = next(json.loads(line) for line in (out / "results.jsonl").read_text().splitlines() if '"p1"' in line)
    lines = text.splitlines()
    assert code == 0 and lines[0] == "p1: What is 1 + 1?"
    assert lines[1].startswith(f"  {row['answer']}: ") and "votes" in lines[1] and "best score" in lines[1]
    winning = [line for line in lines if line.startswith("* ")]
    assert len(winning) == row["node"].count(".") + 1
    assert lines[-1] == f"answer: {row['answer']} (stopped: {row['stop_reason']})"
    assert "visits" in text


def test_a_half_grown_tree_can_be_shown_and_reported(capsys, simulated, tmp_path: Path):
    out = simulated(3, job=JobOptions(max_tokens=60))
    done = {json.loads(line)["id"] for line in (out / "results.jsonl").read_text().splitlines()}
    half = sorted({"p0", "p1", "p2"} - done)[0]
    code, text, _ = call(capsys, "show", out, half)
    assert code == 0 and "not finished" in text and "tokens]" in text
    run = runs_of(out)[0]
    facts = facts_of(run)
    trees = list(trees_of(run, facts, 10))
    assert half in {tree["id"] for tree in trees} and half in {row["id"] for row in facts.rows}


def test_a_journal_that_cannot_be_read_is_counted_and_the_report_is_made(capsys, simulated):
    out = simulated(3, job=JobOptions(max_tokens=60))
    done = {json.loads(line)["id"] for line in (out / "results.jsonl").read_text().splitlines()}
    left = list(runs_of(out)[0].journal_paths(without=done))
    left[0].write_bytes(b"something else")
    code, text, _ = call(capsys, "report", out)
    assert code == 0 and "1 cannot be read" in Path(text.strip()).read_text()
    code, _, err = call(capsys, "export", out, "--format", "json")
    assert code == 2 and "not a journal" in err


def test_diff_names_what_flipped(capsys, tmp_path: Path, simulated):
    first, second = simulated(3, name="a"), simulated(3, name="b")
    rows = [json.loads(line) for line in (second / "results.jsonl").read_text().splitlines()]
    rows = [
        {**row, "correct": row["id"] == "p0", "answer": "1" if row["id"] == "p1" else row["answer"]} for row in rows
    ]
    rows = [{**row, "tokens": {"generated": 2 * row["tokens"]["generated"]}} for row in rows if row["id"] != "p2"]
    (second / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, text, _ = call(capsys, "diff", first, second)
    assert code == 0
    assert text.splitlines()[:5] == [
        "2 problems in both",
        "right before, not now: 0",
        "right now, not before: 1 (p0)",
        "another answer: 1 (p1)",
        "only in the first: 1 (p2)",
    ]
    assert "(+100.0%)" in text


def test_an_id_that_was_given_twice_is_one_problem(capsys, tmp_path: Path):
    row = {"id": "a", "question": "What is 1 + 1?", "answer": "2"}
    with Orchestrator(model="simulated", runtime="inline", concurrency=1) as orchestrator:
        for name, given in (("one", [row]), ("two", [row, {**row, "question": "What is 5 + 1?"}])):
            (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in given))
            orchestrator.run_batch(tmp_path / "rows.jsonl", tmp_path / name, "greedy")
    text = call(capsys, "diff", tmp_path / "one", tmp_path / "two")[1]
    assert text.splitlines()[:4] == [
        "1 problems in both",
        "right before, not now: 0",
        "right now, not before: 0",
        "another answer: 0",
    ]
    page = Path(call(capsys, "report", tmp_path / "two")[1].strip()).read_text()
    assert page.count('class="tree-data"') == 1 and "given before" in page


def test_json_trajectories_and_trace(capsys, simulated):
    out = simulated(2)
    code, text, _ = call(capsys, "export", out, "--format", "json")
    whole = json.loads(text)
    assert code == 0 and {p["id"] for p in whole["problems"]} == {"p0", "p1"}
    code, text, _ = call(capsys, "export", out, "--format", "trajectories", "--id", "p0")
    rows = [json.loads(line) for line in text.splitlines()]
    nodes = next(p for p in whole["problems"] if p["id"] == "p0")["nodes"]
    assert {row["node"] for row in rows} == {node["id"] for node in nodes} - {"r"}
    by_id = {node["id"]: node for node in nodes}
    for row in rows:
        node = by_id[row["node"]]
        assert bytes(token for token in row["token_ids"] if token < 256).decode() == row["text"] == node["text"]
        assert (row["reward"], row["parent"], row["chosen"]) == (node["score"], node["parent"], node["win"])
        assert (row["correct"] is None) == (not node["complete"]) and row["logprob"] < 0
    events = json.loads(call(capsys, "export", out, "--format", "trace")[1])["traceEvents"]
    assert sorted(e["name"] for e in events if e["ph"] == "X" and e["pid"] == 2) == ["p0", "p1"]
    assert {e["args"]["name"] for e in events if e["ph"] == "M"} >= {"engines", "problems", "engine-0", "engine-1"}


@pytest.mark.parametrize("texts", [["one.\n\n", "two.\n\n", "three.\n\n"], ["one.\n\n"]], ids=["different", "equal"])
def test_requests_have_the_length_of_their_prompt(tmp_path: Path, texts: list[str]):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": "p", "question": "What is 1 + 2?"}\n')
    with Orchestrator(engine=lambda: ScriptedEngine(texts), runtime="inline", engines=1) as orchestrator:
        orchestrator.run_batch(rows, tmp_path / "out", "tot", k=3, max_depth=2)
        codec = orchestrator.spec.codec()
    prompt = len(codec.encode(codec.render(ChatPrompt().messages(Problem("What is 1 + 2?")))))
    found = [json.loads(str(line)) for line in export(runs_of(tmp_path / "out")[0], "requests")]
    assert {row["input_length"] for row in found if row["parent"] is None} == {prompt}


@pytest.mark.parametrize("text", ["step", HOSTILE])
def test_graphs_and_pictures(capsys, by_hand, tmp_path: Path, text: str):
    out = by_hand(20, text)
    graph = nx.read_graphml(io.StringIO(call(capsys, "export", out, "--format", "graphml")[1]))
    assert graph.number_of_nodes() == 21 and graph.number_of_edges() == 20
    assert graph.nodes["p0/r.0"]["score"] == 0.5
    picture = ElementTree.fromstring(call(capsys, "export", out, "--format", "svg")[1])
    name = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{name}circle")) == 21 and len(picture.findall(f"{name}path")) == 20
    assert {child.tag.removeprefix(name) for child in picture} == {"style", "rect", "path", "circle", "text"}
    assert sum(path.get("class") == "win" for path in picture.findall(f"{name}path")) >= 2
    lines = call(capsys, "export", out, "--format", "dot")[1].splitlines()
    assert sum(" -> " in line for line in lines) == 20 and len(lines) == 2 + 21 + 20 + 1
    file = tmp_path / "tree.png"
    assert call(capsys, "export", out, "--format", "png", "--out", file)[0] == 0
    data = file.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT") + 4
    size = struct.unpack(">I", data[start - 8 : start - 4])[0]
    pixels = zlib.decompress(data[start : start + size])
    assert len(pixels) == height * (1 + 3 * width) and bytes((214, 140, 0)) in pixels


def test_what_is_not_there_is_named(capsys, simulated, tmp_path: Path):
    out = simulated(2, ("mcts", "greedy"))
    for arguments, words in [
        (("show", tmp_path, "p0"), "it has no runs"),
        (("show", out, "p0"), "several runs: greedy, mcts; give --name"),
        (("show", out, "p9", "--name", "mcts"), "no tree of problem 'p9'"),
        (("report", out, "--name", "tot"), "no run 'tot'; runs: greedy, mcts"),
        (("export", out, "--name", "mcts", "--format", "pdf"), "choices: json, graphml"),
        (("export", out, "--name", "mcts", "--format", "svg"), "give --id"),
        (("export", out, "--name", "mcts", "--format", "png", "--id", "p0"), "give --out"),
        (("report", out, "--out", tmp_path / "gone" / "x.html"), "cannot write"),
    ]:
        code, text, err = call(capsys, *arguments)
        assert (code, text) == (2, "") and words in err, arguments


def test_a_run_without_events_says_so_where_they_are_needed(capsys, simulated, tmp_path: Path):
    out, file = simulated(1), tmp_path / "kept.json"
    (out / "runs/mcts/events.jsonl").unlink()
    file.write_text("before")
    for arguments in (
        ("export", out, "--format", "trace"),
        ("export", out, "--format", "requests", "--out", file),
        ("explain", out, "p0", "r.0"),
    ):
        code, text, err = call(capsys, *arguments)
        assert (code, text) == (2, "") and "has no events.jsonl" in err, arguments
    assert file.read_text() == "before"
    assert call(capsys, "export", out, "--format", "json")[0] == call(capsys, "report", out)[0] == 0


def test_a_hostile_run_is_harmless_on_the_terminal_and_in_the_page(capsys, by_hand, tmp_path: Path):
    out = by_hand(6, HOSTILE, HOSTILE, HOSTILE)
    _, text, _ = call(capsys, "show", out, HOSTILE)
    assert "\x1b" not in text and "\u202e" not in text and "\x00" not in text
    code, text, _ = call(capsys, "report", out)
    page = Path(text.strip()).read_text()
    assert code == 0
    assert "<script>window" not in page and "<img" not in page and "\x1b" not in page and "\u202e" not in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert len(page) < 200_000


def test_report_leaves_out_trees_beyond_the_limit(capsys, simulated, tmp_path: Path):
    out = simulated(5)
    call(capsys, "report", out, "--max-trees", 2, "--out", tmp_path / "small.html")
    page = (tmp_path / "small.html").read_text()
    assert page.count('class="tree-data"') == 2 and page.count('"id":"p') == 5 + 2


def test_texts_are_made_visible():
    assert visible("a\x1b[0m\u202e\ud800\n\tb") == "a⟨U+001B⟩[0m⟨U+202E⟩⟨U+D800⟩\n\tb"
    assert visible("x" * 50, 10) == "x" * 10 + " ... (40 more characters)"
    assert escaped("<a b='\"'>&") == "&lt;a b=&#x27;&quot;&#x27;&gt;&amp;"
    text = script_json({"</script>": ["<!--", float("nan"), float("inf"), 1.23456789, None, "\u2028"]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"</script>": ["<!--", None, None, 1.234568, None, "⟨U+2028⟩"]}


def test_plots_are_well_formed_and_show_their_numbers():
    made = [
        bars("b <", {"a & b": 3.0, "none": 0.0}, " s"),
        histogram("h", [1, 2, 2, 3]),
        running_share("r", [True, False, True]),
        timeline("t", [("engine-0", 0.0, 1.5), ("engine-1", 0.5, 1.0)]),
    ]
    svgs = [ElementTree.fromstring(plot[plot.index("<svg") : plot.index("</svg>") + 6]) for plot in made]
    assert [len(svg.findall("rect")) for svg in svgs] == [1, 3, 0, 4]
    assert svgs[0].get("aria-label") == "b <" and "3 s" in made[0]
    points = svgs[2].find("polyline").get("points").split()
    assert len(points) == 4 and len({point.split(",")[1] for point in points}) == 3
    for plot in (bars("b", {}), histogram("h", []), running_share("r", []), timeline("t", [])):
        assert "<svg" not in plot


def test_a_timeline_of_many_stretches_shows_all_of_the_time():
    busy = [(f"engine-{i % 8}", i * 0.1, i * 0.1 + (0.4 if i < 16_000 else 0.2)) for i in range(20_000)]
    plot = timeline("t", busy)
    blocks = ElementTree.fromstring(plot[plot.index("<svg") : plot.index("</svg>") + 6]).findall("rect[@class='bar']")
    assert len(blocks) <= 4000 + 8
    ends = {}
    for block in blocks:
        x, width, share = (float(block.get(key, "1")) for key in ("x", "width", "opacity"))
        lane = ends.setdefault(block.get("y"), [0.0, 0.0])
        lane[0], lane[1] = max(lane[0], x + width), lane[1] + width * share
    right = 102 + 420 * 2 - 110
    assert len(ends) == 8
    for last, worked in ends.values():
        assert last == pytest.approx(right, abs=1.0)
        assert worked == pytest.approx((right - 102) * (0.5 * 0.8 + 0.25 * 0.2), rel=0.03)


def test_places_put_parents_between_children_without_recursion():
    nodes = [{"id": "r", "parent": None, "depth": 0}]
    for i in range(3000):
        nodes.append({"id": f"n{i}", "parent": "r" if i == 0 else f"n{i - 1}", "depth": i + 1})
    nodes += [{"id": "a", "parent": "r", "depth": 1}, {"id": "lost", "parent": "gone", "depth": 9}]
    found = places(nodes)
    assert found["n2999"] == (3000.0, 0.0) and found["a"] == (1.0, 1.0) and found["r"] == (0.0, 0.5)
    assert "lost" not in found and preorder(nodes)[:2] == ["r", "n0"]
