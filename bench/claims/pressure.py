"""RSBCM under pressure: a scripted tree search under KV budgets, by eviction policy.

The search is a function of its seed: every node's score is its parent's with noise, and the open node with the best
score is expanded, now and then any other. Tokens of steps are given, not drawn: every policy does the same work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from bench.claims.rows import Row
from engine.base import BranchRequest, Segments, StepRule, path_keys
from engine.local import LocalEngine
from engine.scripted import ScriptedEngine
from search.calibration.binomial import clopper_pearson
from search.scale import Scale

POLICIES = ("lru", "omega", "value")
BUDGETS = {"half": 2, "quarter": 4}
EXPLORE = 0.25
"""Share of expansions that take any open node instead of the best."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a search; trees are expanded in turn. prompt, step: tokens."""

    trees: int = 2
    expansions: int = 12
    children: int = 3
    prompt: int = 160
    step: int = 32


@dataclass(frozen=True, slots=True)
class Node:
    path: Segments
    score: float


@dataclass(slots=True)
class Tree:
    """Open nodes, and all judged ones, whose scores an engine is told on the problem's scale (as a search does)."""

    open: list[Node]
    judged: list[Node] = field(default_factory=list)
    scale: Scale = field(default_factory=Scale)

    def judge(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """Take in children; returns the nodes whose score on the scale is new."""
        widened = self.scale.widen(node.score for node in nodes)
        self.open += nodes
        self.judged += nodes
        return self.judged if widened else nodes


@dataclass(frozen=True, slots=True)
class Run:
    """prefilled: prompt tokens computed; kv_bytes: held at the end."""

    prefilled: int
    kv_bytes: int
    seconds: float


def search(engine: Any, fingerprint: str, plan: Plan, seed: int) -> Run:
    """Run the search of `seed` on an engine."""
    random = Random(seed)
    trees = [Tree([Node((_tokens(random, plan.prompt),), 0.5)]) for _ in range(plan.trees)]
    began = perf_counter()
    prefilled = sum(_expand(engine, fingerprint, tree, plan, random) for _ in range(plan.expansions) for tree in trees)
    return Run(prefilled, engine.stats()["kv_bytes"], perf_counter() - began)


def _expand(engine: Any, fingerprint: str, tree: Tree, plan: Plan, random: Random) -> int:
    """Replace an open node by its children; returns the tokens prefilled for them."""
    best = max(range(len(tree.open)), key=lambda i: tree.open[i].score)
    parent = tree.open.pop(random.randrange(len(tree.open)) if random.random() < EXPLORE else best)
    children = [
        Node((*parent.path, _tokens(random, plan.step)), min(max(parent.score + random.uniform(-0.2, 0.2), 0.0), 1.0))
        for _ in range(plan.children)
    ]
    rule = StepRule(max_tokens=1)
    results = engine.expand([BranchRequest(str(i), c.path, (0,), rule, 0.0) for i, c in enumerate(children)])
    errors = [result.error for result in results if result.error]
    if errors:
        raise RuntimeError(errors[0])
    engine.note_scores(
        [
            (path_keys(fingerprint, node.path)[-1], tree.scale.of(node.score), len(node.path) - 1)
            for node in tree.judge(children)
        ]
    )
    return sum(result.usage.prefilled for result in results)


def _tokens(random: Random, count: int) -> tuple[int, ...]:
    """Ids that every vocabulary here has, and that end nothing."""
    return tuple(random.randrange(32, 127) for _ in range(count))


@dataclass(frozen=True, slots=True)
class Pressure:
    """Runs by (budget, policy), one a seed; `unbounded` of the same seeds."""

    unbounded: Sequence[Run]
    bounded: Mapping[tuple[str, str], Sequence[Run]]

    def extra(self, budget: str, policy: str) -> list[int]:
        """Prompt tokens computed beyond those of the unbounded run, by seed."""
        pairs = zip(self.bounded[budget, policy], self.unbounded, strict=True)
        return [run.prefilled - free.prefilled for run, free in pairs]


def counted(plan: Plan, seeds: Sequence[int]) -> Pressure:
    """Books only, no model: the engine's own KV tree and policies on counted tokens."""

    def build(budget: int | None, policy: str) -> tuple[Any, str]:
        return ScriptedEngine([""], kv_budget_bytes=budget, eviction=policy), "factory"

    return _pressure(build, plan, seeds)


def real(engine: LocalEngine, plan: Plan, seeds: Sequence[int]) -> Pressure:
    """The model of `engine`, with KV of its own for each run."""

    def build(budget: int | None, policy: str) -> tuple[Any, str]:
        name = engine.tree.fingerprint
        return LocalEngine(engine.model, engine.codec, name, kv_budget_bytes=budget, eviction=policy), name

    return _pressure(build, plan, seeds)


def _pressure(build: Callable[[int | None, str], tuple[Any, str]], plan: Plan, seeds: Sequence[int]) -> Pressure:
    bounded: dict[tuple[str, str], list[Run]] = {(b, p): [] for b in BUDGETS for p in POLICIES}
    unbounded = []
    for number, seed in enumerate(seeds):
        free = search(*build(None, "lru"), plan, seed)
        unbounded.append(free)
        shift = number % len(POLICIES)
        for budget, divisor in BUDGETS.items():
            for policy in POLICIES[shift:] + POLICIES[:shift]:
                run = search(*build(free.kv_bytes // divisor, policy), plan, seed)
                bounded[budget, policy].append(run)
    return Pressure(unbounded, bounded)


def rows(books: Pressure, timed: Pressure) -> list[Row]:
    found = []
    for budget in BUDGETS:
        found += [_recomputed(books, budget, policy) for policy in POLICIES]
        found += [_against_lru(books, budget, policy) for policy in POLICIES if policy != "lru"]
        found += [_seconds(timed, budget, policy) for policy in POLICIES]
    return found


def _recomputed(books: Pressure, budget: str, policy: str) -> Row:
    shares = [extra / run.prefilled for extra, run in zip(books.extra(budget, policy), books.unbounded, strict=True)]
    text = f"prompt tokens computed again / computed unbounded, {_under(budget)}; median, low and high over seeds"
    return Row(f"rsbcm_{policy}_{budget}_recomputed", None, median(shares), len(shares), min(shares), max(shares), text)


def _against_lru(books: Pressure, budget: str, policy: str) -> Row:
    ours, lru = books.extra(budget, policy), books.extra(budget, "lru")
    each = [other / own for own, other in zip(ours, lru, strict=True) if own]
    overall = sum(lru) / sum(ours) if sum(ours) else None
    better, worse = (sum(sign * (a - b) > 0 for a, b in zip(lru, ours, strict=True)) for sign in (1, -1))
    gain = clopper_pearson(better, better + worse)[0] > 0.5
    text = (
        f"tokens recomputed by lru / by {policy}, {_under(budget)}, sums over seeds; low and high: one seed; "
        f"{policy} {'gains on' if gain else 'shows no gain over'} lru: fewer in {better}, more in {worse} seeds "
        "(a gain: the 95 % Clopper-Pearson interval of that share lies above one half)"
    )
    low, high = (min(each), max(each)) if each else (None, None)
    return Row(f"rsbcm_{policy}_vs_lru_{budget}", None, overall, len(ours), low, high, text)


def _seconds(timed: Pressure, budget: str, policy: str) -> Row:
    pairs = zip(timed.bounded[budget, policy], timed.unbounded, strict=True)
    ratios = [run.seconds / free.seconds for run, free in pairs]
    again = sum(timed.extra(budget, policy)) / sum(run.prefilled for run in timed.unbounded)
    text = (
        f"seconds with {policy} / unbounded, {_under(budget)}, on the model, where {again:.1%} of the prompt tokens "
        "are computed again; median, low and high over seeds"
    )
    return Row(f"rsbcm_{policy}_{budget}_seconds", None, median(ratios), len(ratios), min(ratios), max(ratios), text)


def _under(budget: str) -> str:
    return f"KV budget {budget} of what the search holds unbounded"
