"""One HTML file for the runs of a folder: style, script and data are in it, and it asks nothing of any network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import TextIO

from orchestrator.batch.folder import Run
from orchestrator.report.collect import RunFacts, facts_of, trees_of
from orchestrator.report.harmless import escaped, script_json
from orchestrator.report.plots import bars, histogram, running_share, timeline
from search.verifiers.auc import auc, auc_within

MAX_TREES = 500
MAX_BYTES = 200 << 20


def write_page(runs: Sequence[Run], out: TextIO, max_trees: int = MAX_TREES) -> None:
    """Write the page. max_trees: of each run; rows without a tree say so, and trees end at `MAX_BYTES` in all."""
    head, body, foot = (_part("page.html").replace("/*STYLE*/", _part("page.css"))).split("<!--SPLIT-->")
    out.write(head.replace("<!--TITLE-->", escaped(", ".join(run.name for run in runs))))
    written = 0
    for run in runs:
        facts = facts_of(run)
        trees = list(_bounded(run, facts, max_trees, MAX_BYTES - written))
        written += sum(map(len, trees))
        out.write(_section(run, facts))
        out.write(_data("rows-data", run.name, script_json(facts.rows)))
        for text in trees:
            out.write(_data("tree-data", run.name, text))
    out.write(body + "<script>" + _part("page.js") + "</script>" + foot)


def _bounded(run: Run, facts: RunFacts, most: int, room: int) -> Iterator[str]:
    for tree in trees_of(run, facts, most):
        text = script_json(tree)
        room -= len(text)
        if room < 0:
            return
        yield text


def _data(kind: str, run: str, text: str) -> str:
    return f'<script type="application/json" class="{kind}" data-run="{escaped(run)}">{text}</script>\n'


def _section(run: Run, facts: RunFacts) -> str:
    """Summary and plots of one run."""
    counts, right = facts.counts, sum(facts.hits)
    kinds = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("generated", "prefilled", "verified"))
    accuracy = f"{right / len(facts.hits):.1%} ({right} of {len(facts.hits)})" if facts.hits else "unknown"
    idle = f"{sum(facts.idle.values()) / len(facts.idle):.1%}" if facts.idle else "unknown"
    facts_shown = {
        "problems": f"{counts['done']:,} done, {counts['failed']:,} failed",
        "accuracy": accuracy,
        "verifier AUC": _auc(facts),
        "tokens": kinds,
        "engines idle": idle,
        "input": run.source,
        "strategy": str(run.settings.get("strategy")),
        "model": str(run.settings.get("model")),
    }
    if counts["unreadable"]:
        facts_shown["journals"] = f"{counts['unreadable']:,} cannot be read"
    cells = "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in facts_shown.items())
    settings = "".join(f"<dt>{escaped(k)}</dt><dd>{escaped(v)}</dd>" for k, v in sorted(run.settings.items()))
    return (
        f'<section class="run" data-run="{escaped(run.name)}"><h2>{escaped(run.name)}</h2><dl>{cells}</dl>'
        f"<details><summary>settings</summary><dl>{settings}</dl></details>"
        f'<div class="plots">{_plots(facts)}</div></section>\n'
    )


def _auc(facts: RunFacts) -> str:
    """How often the verifier scores a right path above a wrong one: over all paths, and within problems."""
    both = auc([pair for pairs in facts.judged for pair in pairs]), auc_within(facts.judged)
    shown = ["unknown" if value is None else f"{value:.2f}" for value in both]
    return f"{shown[0]} over all paths, {shown[1]} within a problem" if shown != ["unknown"] * 2 else "unknown"


def _plots(facts: RunFacts) -> str:
    prompt = {**dict(facts.reused), "prefilled": facts.counts["prefilled"]}
    return "".join(
        (
            running_share("accuracy over finished problems", facts.hits),
            histogram("generated tokens of a problem", facts.tokens),
            bars("seconds by phase", dict(facts.seconds), " s"),
            bars("prompt tokens by reuse tier", prompt),
            bars("why searches stopped", dict(facts.stops)),
            bars("generated tokens by engine", dict(facts.engines)),
            timeline("engines at work, newest process", facts.busy),
        )
    )


def _part(name: str) -> str:
    return files("orchestrator.report").joinpath(name).read_text(encoding="utf-8")
