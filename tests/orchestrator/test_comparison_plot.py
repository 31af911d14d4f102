"""`compare --plot`: accuracy with its interval over tokens, as SVG and as a page."""

import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip("typer")

from orchestrator.report.comparison_plot import PLOTS, page, svg
from search.comparison import Comparison, Record
from tests.orchestrator.test_compare import SIMULATED, data, run

__all__ = ["data"]
SVG = "{http://www.w3.org/2000/svg}"


def record(strategy, number, correct, generated, oracle=None):
    right = correct if oracle is None else oracle
    return Record(strategy, str(number), "1", correct, right, generated, 0, 0, 0, 1.0, "done")


@pytest.fixture
def lines():
    """greedy: 1 of 4 right with 100 tokens; vote: 2 of 4 with 400, and 3 of 4 by some path; open: nothing to grade."""
    comparison = Comparison("greedy")
    for i in range(4):
        comparison.add(record("greedy", i, i < 1, 100))
        comparison.add(record("<vote>", i, i < 2, 400, i < 3))
        comparison.add(record("open", i, None, 50))
    return comparison.lines()


def points(text):
    """(x, y) of filled points that carry a title, by the title."""
    root = ElementTree.fromstring(text)
    return {
        circle[0].text: (float(circle.get("cx")), float(circle.get("cy")))
        for circle in root.iter(f"{SVG}circle")
        if len(circle)
    }


def test_points_stand_at_their_accuracy_and_tokens(lines):
    found = points(svg(lines, "title"))
    assert set(found) == {"greedy: 25.0 % of 4, 100 tokens", "<vote>: 50.0 % of 4, 400 tokens"}
    (x_greedy, y_greedy), (x_vote, y_vote) = found.values()
    left = 60
    assert (x_vote - left) == pytest.approx(4 * (x_greedy - left))
    assert y_vote < y_greedy


def test_intervals_and_pass_at_n_are_drawn_to_scale(lines):
    root = ElementTree.fromstring(svg(lines))
    grid = [float(line.get("y1")) for line in root.iter(f"{SVG}line")]
    zero, whole = max(grid), min(grid)
    low, high = lines[1].interval
    bars = [path.get("d") for path in root.iter(f"{SVG}path") if path.get("stroke")]
    bottom, top = (float(part) for part in bars[1].split("M")[1].split(" ")[1].split("V"))
    assert (zero - bottom) / (zero - whole) == pytest.approx(low, abs=0.01)
    assert (zero - top) / (zero - whole) == pytest.approx(high, abs=0.01)
    (hollow,) = [float(c.get("cy")) for c in root.iter(f"{SVG}circle") if c.get("fill") == "none"]
    assert (zero - hollow) / (zero - whole) == pytest.approx(0.75, abs=0.01)


def test_names_are_escaped_and_nothing_is_fetched(lines):
    text = page(lines, "<b>")
    assert "<vote>" not in text and "&lt;vote&gt;" in text and "<title>&lt;b&gt;</title>" in text
    for word in ("src=", "@import", "<script", "url("):
        assert word not in text


def test_a_comparison_without_anything_graded_is_an_empty_plot():
    assert points(svg([])) == {}


@pytest.mark.parametrize("ending", PLOTS)
def test_the_command_writes_the_form_of_the_ending(capsys, data, tmp_path, ending):
    file = tmp_path / f"plot{ending}"
    arguments = ("--data", str(data), "--strategies", "greedy,best_of_n", "--plot", str(file))
    code, out, _ = run(capsys, "compare", *arguments, *SIMULATED)
    text = file.read_text(encoding="utf-8")
    assert code == 0 and out.startswith("strategy")
    assert text.startswith("<svg" if ending == ".svg" else "<!doctype html>")
    assert "greedy: " in text and "best_of_n: " in text and "2048 tokens at most, 12 problems" in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("plot.png", [".html or .svg", "plot.png"]),
        ("gone/plot.svg", ["gone/plot.svg", "cannot be written", "no folder"]),
    ],
)
def test_a_plot_that_cannot_be_made_is_a_usage_error(capsys, data, tmp_path, name, words):
    arguments = ("--data", str(data), "--strategies", "greedy", "--limit", "1", "--plot", str(tmp_path / name))
    code, _, err = run(capsys, "compare", *arguments, *SIMULATED)
    assert code == 2
    for word in words:
        assert word in err
