"""`python -m bench.layer_exit --data FILE`: what CGEE level 2 saves, and what it changes, on real questions.

Each row of FILE (JSONL: `question`, `answer` with the result behind `####`) gives two candidate answers: its own worked
solution, and the same one with another row's result in place of its own. Every rule reads the same verification
question behind both, and is compared with the full pass: layer-rows run, verdicts (P(yes) > 0.5) that flip, and pairs
whose better-scored candidate changes. Seconds are the process's CPU time for the questions only; the candidates' KV is
held before. `--layers` adds readings that all end at one layer: what is known of the answer there.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.environment import environment
from bench.markdown import markdown
from engine.base import Engine, LayerExit, ScoreQuery
from engine.local import LocalEngine
from search.prompts import ANSWER_QUESTION, ChatPrompt
from search.types import Problem

MARGINS = (1.0, 2.0, 4.0, 8.0)
LAYERS = (10, 15, 20, 25, 28, 29)
_COLUMNS = (
    "rule",
    "exits",
    "layer-rows run",
    "CPU s",
    "verdicts yes",
    "flipped",
    "pairs changed",
    "right above wrong",
)


def rules(thresholds: list[float], layers: list[int]) -> dict[str, LayerExit | None]:
    """Rules by name; the full pass first. The paper's rule with its defaults, and with its theta for Mistral."""
    found: dict[str, LayerExit | None] = {"full": None, "paper": LayerExit("paper")}
    found["paper, theta 0.5"] = LayerExit("paper", 0.5)
    for threshold in thresholds:
        found[f"margin {threshold:g}"] = LayerExit("margin", threshold)
    for layer in layers:
        found[f"all at layer {layer}"] = LayerExit("margin", 0.0, first=layer, every=1, agree=1)
    return found


def candidates(rows: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """(question, right solution, wrong solution) of every row; the wrong one ends in the next other result."""
    found = []
    for i, row in enumerate(rows):
        steps, _, result = str(row["answer"]).partition("####")
        steps = re.sub(r"<<.*?>>", "", steps).strip()
        results = (str(other["answer"]).partition("####")[2].strip() for other in rows[i + 1 :] + rows[:i])
        other = next((r for r in results if r != result.strip()), f"{result.strip()}0")
        right, wrong = (f"{steps}\n\nAnswer: {text}" for text in (result.strip(), other))
        found.append((str(row["question"]), right, wrong))
    return found


def queries(engine: Engine, rows: list[dict[str, Any]]) -> list[ScoreQuery]:
    """The verification question behind each candidate, a row's right one before its wrong one."""
    codec, chat = engine.codec, ChatPrompt()
    question = codec.next_turn(ANSWER_QUESTION)
    found = []
    for i, (text, *solutions) in enumerate(candidates(rows)):
        prompt = tuple(codec.encode(codec.render(chat.messages(Problem(text)))))
        for j, solution in enumerate(solutions):
            found.append(ScoreQuery(f"{i}.{j}", (prompt, tuple(codec.encode(solution))), question))
    return found


def measure(engine: Engine, asked: list[ScoreQuery], rule: LayerExit | None) -> tuple[dict[str, Any], list[float]]:
    """Counts and seconds of reading all questions by one rule, and P(yes) of each."""
    results = engine.score([replace(query, layer_exit=rule) for query in asked])
    for result in results:
        if result.p_yes is None:
            raise RuntimeError(f"candidate {result.id} was not scored: {result.error}")
    usages = [result.usage for result in results]
    row = {
        "n": len(results),
        "exits": sum(u.exits for u in usages),
        "layer_rows": sum(u.layer_rows for u in usages),
        "layer_rows_full": sum(u.layer_rows_full for u in usages),
        "seconds": sum(u.seconds.get("score", 0.0) for u in usages),
    }
    return row, [result.p_yes for result in results if result.p_yes is not None]


def compared(full: list[float], found: list[float]) -> dict[str, Any]:
    """What a rule's verdicts change. full, found: P(yes) of right and wrong candidates in turn."""
    flips = sum((a > 0.5) != (b > 0.5) for a, b in zip(full, found, strict=True))
    better = [[scores[i] > scores[i + 1] for i in range(0, len(scores), 2)] for scores in (full, found)]
    return {
        "yes": sum(p_yes > 0.5 for p_yes in found),
        "flips": flips,
        "pairs": len(better[0]),
        "pairs_changed": sum(a != b for a, b in zip(*better, strict=True)),
        "right_above_wrong": sum(better[1]),
    }


def run(engine: Engine, rows: list[dict[str, Any]], thresholds: list[float], layers: list[int]) -> list[dict[str, Any]]:
    """One row for each rule, the full pass first."""
    asked = queries(engine, rows)
    measure(engine, asked, None)
    found, full = [], None
    for name, rule in rules(thresholds, layers).items():
        row, scores = measure(engine, asked, rule)
        full = scores if full is None else full
        found.append({"rule": name, **row, **compared(full, scores)})
    return found


def table(rows: list[dict[str, Any]]) -> str:
    cells: list[tuple[str, ...]] = [_COLUMNS]
    for row in rows:
        share = row["layer_rows"] / row["layer_rows_full"]
        line = (
            row["rule"],
            f"{row['exits']} of {row['n']}",
            f"{share:.1%}",
            f"{row['seconds']:.2f}",
            f"{row['yes']} of {row['n']}",
            f"{row['flips']} of {row['n']}",
            f"{row['pairs_changed']} of {row['pairs']}",
            f"{row['right_above_wrong']} of {row['pairs']}",
        )
        cells.append(line)
    return markdown(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="JSONL with question and answer")
    parser.add_argument("--rows", type=int, default=20, help="rows of the file that are used")
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--thresholds", type=float, nargs="+", default=list(MARGINS), help="of the margin rule")
    parser.add_argument("--layers", type=int, nargs="*", default=list(LAYERS), help="layers at which all are read")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    lines = options.data.read_text(encoding="utf-8").splitlines()[: options.rows]
    loaded = LocalEngine.load(options.model, dtype=options.dtype)
    engine = LocalEngine(loaded.model, loaded.codec, loaded.tree.fingerprint, clock=time.process_time)
    found = run(engine, [json.loads(line) for line in lines], options.thresholds, options.layers)
    if options.json:
        print(json.dumps({"environment": environment(), "settings": engine.settings, "rows": found}))
    else:
        print(table(found))


if __name__ == "__main__":
    main()
