"""Placement of branches on engines: a pure function of what is held, how loaded engines are, and how fast.

For each branch of L tokens and each candidate engine a, in seconds:
`J = wait + min(recompute, transfer) + decode + mu * [a not in home(tree)] * L / prefill_rate[a]`; the lowest J wins.
Waiting and decoding count the scoring that rows bring, which is done where they were grown.
Candidates are a tree's home, confirmed holders of the last two segments, and a few drawn at random: the work of a
decision does not grow with the number of engines. Of equals, two are drawn and the less loaded one is taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from actors.link import MU, Link

PREFILL_RATE = 400.0
STEP_S = 0.06
"""Speeds assumed of an engine before any is measured: a small model on one CPU core."""

MAX_HOLDERS = 16
MAX_HOMES = 8
RANDOM = 4
"""Candidates for a branch: confirmed holders and home engines at most, and engines drawn at random."""

Holders = Callable[[bytes], Collection[str]]
"""Engines confirmed to hold the prefix with this key."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One expansion to place: prefix keys and ends (tokens) at each segment, sample rows, expected new tokens a row.

    avoid: engines that it must not go to, if there are others. grown_on: the engine that grew its last segment, which
    holds it whether the index has heard of that already or not.
    """

    id: str
    keys: tuple[bytes, ...]
    ends: tuple[int, ...]
    rows: int
    new_tokens: int
    avoid: tuple[str, ...] = ()
    grown_on: str = ""

    @property
    def length(self) -> int:
        return self.ends[-1] if self.ends else 0

    def whole(self, tokens: int) -> int:
        """Tokens of the whole segments within the first `tokens`."""
        return max((end for end in self.ends if end <= tokens), default=0)

    def shared(self, keys: Collection[bytes]) -> int:
        """Tokens of its longest prefix that is among those with these keys."""
        return max((end for key, end in zip(self.keys, self.ends, strict=True) if key in keys), default=0)

    @property
    def root(self) -> bytes:
        """Key of the prompt."""
        return self.keys[0] if self.keys else b""

    @property
    def root_length(self) -> int:
        return self.ends[0] if self.ends else 0


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do already, and its measured rates: tokens/s of prefill, seconds of a decode step, step_s +
    row_s for each row that decodes with it (0: not known), and score_s, seconds of scoring that a row brings.

    demand: rows that the trees which live there bring in a wave, be they outstanding or not. hardware: what it computes
    on, where others may, too (empty: nobody else does), and slots, the engines which that bears at full speed.
    """

    prefill_tokens: int = 0
    rows: int = 0
    prefill_rate: float = PREFILL_RATE
    step_s: float = STEP_S
    row_s: float = 0.0
    score_s: float = 0.0
    demand: float = 0.0
    hardware: str = ""
    slots: int = 1


class Loaded(Protocol):
    """What placement reads of an engine; see `Load`."""

    @property
    def prefill_tokens(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def prefill_rate(self) -> float: ...
    @property
    def step_s(self) -> float: ...
    @property
    def row_s(self) -> float: ...
    @property
    def score_s(self) -> float: ...
    @property
    def demand(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """Decision for one branch with every term of its cost, in seconds.

    available: tokens of its path that some engine holds; predicted_hit: those that `actor` holds or will hold. source:
    engine to take missing KV from where that is faster than `recompute_s`; transfer_s: seconds of that. runner_up: the
    second best candidate, empty if there was one only, and runner_up_s its cost. candidates: how many were priced.
    """

    id: str
    actor: str
    predicted_hit: int
    wait_s: float
    recompute_s: float
    decode_s: float
    away_s: float
    available: int = 0
    source: str = ""
    transfer_s: float | None = None
    runner_up: str = ""
    runner_up_s: float = 0.0
    candidates: int = 1
    policy: str = ""

    @property
    def cost_s(self) -> float:
        moved = self.recompute_s if self.transfer_s is None else self.transfer_s
        return self.wait_s + moved + self.decode_s + self.away_s


@dataclass(slots=True)
class Plan:
    """What one engine will have to do once the wave so far is placed on it."""

    prefill_tokens: int
    rows: float
    prefill_rate: float
    step_s: float
    row_s: float
    score_s: float
    keys: set[bytes] = field(default_factory=set)


class Wave:
    """The cluster as one wave sees it while its branches are placed, in order; each decision is load for the next.

    names: engines that may be used. loads: by name, looked up for candidates only. home: engines of the tree.
    link: how KV can be moved, if it can. rivals: engines that share full hardware with home, which gain nothing by
    taking work from there. seed: decides draws.
    """

    def __init__(
        self,
        names: Sequence[str],
        loads: Mapping[str, Loaded],
        holders: Holders,
        home: Sequence[str] = (),
        *,
        rows_per_engine: int,
        mu: float = MU,
        link: Link | None = None,
        rivals: Collection[str] = (),
        seed: object = 0,
    ) -> None:
        self.names = names
        self.rivals = rivals
        self.holders = holders
        self.home = {actor: rank for rank, actor in enumerate(home)}
        self.rows_per_engine = rows_per_engine
        self.mu = mu
        self.link = link
        self.rng = Random(f"{seed}")
        self._loads = loads
        self._plans: dict[str, Plan] = {}
        self._heap: list[tuple[float, int, str]] | None = None
        self._known: dict[bytes, Collection[str]] = {}
        self._held_of: Branch | None = None
        self._held: list[tuple[bytes, int, Collection[str]]] = []

    def plan(self, actor: str) -> Plan:
        """What the engine has to do. Away from home the rows count that its own trees bring, too: those come back."""
        plan = self._plans.get(actor)
        if plan is None:
            load = self._loads[actor]
            away = bool(self.home) and actor not in self.home
            rows = max(load.rows, load.demand) if away else load.rows
            row_s = load.row_s or load.step_s / self.rows_per_engine
            plan = self._plans[actor] = Plan(
                load.prefill_tokens, rows, load.prefill_rate, load.step_s, row_s, load.score_s
            )
        return plan

    def planned(self) -> Iterable[tuple[str, Plan]]:
        """Engines that were looked at, with what they will have to do."""
        return self._plans.items()

    def knows(self, actor: str) -> bool:
        """Whether the engine can be used."""
        return actor in self._loads

    def busy_s(self, actor: str, new_tokens: int) -> float:
        """Seconds that what `actor` has to do already adds to a row of `new_tokens` tokens."""
        plan = self._plans.get(actor) or self.plan(actor)
        return plan.prefill_tokens / plan.prefill_rate + plan.rows * (plan.row_s * new_tokens + plan.score_s)

    def allowed(self, branch: Branch) -> Sequence[str]:
        """Engines this branch may go to; if it should avoid all of them, any."""
        if not branch.avoid:
            return self.names
        return [actor for actor in self.names if actor not in branch.avoid] or self.names

    def hit(self, actor: str, branch: Branch) -> int:
        """Tokens of the branch that `actor` holds, or will hold because an earlier branch of the wave goes there."""
        planned = self.plan(actor).keys
        for key, end, held in self.held(branch):
            if actor in held or key in planned:
                return end
        return 0

    def held(self, branch: Branch) -> list[tuple[bytes, int, Collection[str]]]:
        """(key, end, holders) of each segment, the last one first; looked up once a branch."""
        if self._held_of is not branch:
            known, held = self._known, []
            for key, end in zip(reversed(branch.keys), reversed(branch.ends), strict=True):
                found = known.get(key)
                if found is None:
                    found = known[key] = self.holders(key)
                held.append((key, end, found))
            if branch.grown_on and branch.grown_on not in held[0][2]:
                held[0] = (*held[0][:2], (*held[0][2], branch.grown_on))
            self._held, self._held_of = held, branch
        return self._held

    def recent(self, branch: Branch) -> list[str]:
        """Confirmed holders of the last two segments, at most `MAX_HOLDERS`; the root counts for nobody."""
        found: dict[str, None] = {}
        for _, _, held in self.held(branch)[:2][: len(branch.keys) - 1]:
            found.update((actor, None) for actor in sorted(held) if actor in self._loads)
        return list(found)[:MAX_HOLDERS]

    def costs_s(self, branch: Branch, among: Sequence[str]) -> list[float]:
        """J of each engine, without its terms: the inner loop of placement (`price` is the same in parts)."""
        plans, home, held = self._plans, self.home, self.held(branch)
        length, root, new_tokens = branch.length, branch.root_length, branch.new_tokens
        away = self.mu * length if home else 0.0
        available = next((end for _, end, holders in held if holders), 0) if self.link is not None else 0
        costs = []
        for actor in among:
            plan = plans.get(actor) or self.plan(actor)
            hit = 0
            for key, end, holders in held:
                if actor in holders or key in plan.keys:
                    hit = end
                    break
            at_home = actor in home
            counted = max(hit, root) if at_home else hit
            moved_s = (length - counted) / plan.prefill_rate
            if available > hit:
                moved_s = self._moved_s(plan, length, counted, hit, available) or moved_s
            work = plan.prefill_tokens if at_home else plan.prefill_tokens + away
            step_s = plan.step_s + plan.rows * plan.row_s
            score_s = (plan.rows + branch.rows) * plan.score_s
            costs.append(work / plan.prefill_rate + moved_s + new_tokens * step_s + score_s)
        return costs

    def available(self, branch: Branch) -> int:
        """Tokens of the branch's path that some engine holds."""
        return next((end for _, end, held in self.held(branch) if held), 0)

    def price(
        self,
        branch: Branch,
        actor: str,
        policy: str,
        runner_up: str = "",
        runner_up_s: float = 0.0,
        candidates: int = 1,
    ) -> Placed:
        """Every term of J. The root prefix goes to every home engine anyway and is left out of the comparison."""
        plan = self.plan(actor)
        hit = self.hit(actor, branch)
        at_home = actor in self.home
        counted = max(hit, branch.root_length) if at_home else hit
        available, transfer_s = self.available(branch), None
        if available > hit:
            transfer_s = self._moved_s(plan, branch.length, counted, hit, available)
        return Placed(
            id=branch.id,
            actor=actor,
            predicted_hit=hit,
            wait_s=self.busy_s(actor, branch.new_tokens),
            recompute_s=(branch.length - counted) / plan.prefill_rate,
            decode_s=branch.new_tokens * plan.step_s + branch.rows * plan.score_s,
            away_s=0.0 if at_home or not self.home else self.mu * branch.length / plan.prefill_rate,
            available=max(available, hit),
            source="" if transfer_s is None else self._source(branch),
            transfer_s=transfer_s,
            runner_up=runner_up,
            runner_up_s=runner_up_s,
            candidates=candidates,
            policy=policy,
        )

    def book(self, branch: Branch, placed: Placed) -> None:
        """The branch goes there: load and prefixes of that engine as the next branches see them."""
        plan = self.plan(placed.actor)
        plan.prefill_tokens += branch.length - placed.predicted_hit
        plan.rows += branch.rows
        plan.keys.update(branch.keys)

    def lightest(self, new_tokens: int, count: int) -> list[str]:
        """The `count` home engines with least to do; kept in a heap, so that a large home costs no more."""
        if self._heap is None:
            self._heap = [(self.busy_s(actor, new_tokens), rank, actor) for actor, rank in self.home.items()]
            heapq.heapify(self._heap)
        heap = self._heap
        found: list[tuple[float, int, str]] = []
        while heap and len(found) < count:
            busy_s, rank, actor = heap[0]
            now_s = self.busy_s(actor, new_tokens)
            if now_s > busy_s:
                heapq.heapreplace(heap, (now_s, rank, actor))
            else:
                found.append(heapq.heappop(heap))
        for entry in found:
            heapq.heappush(heap, entry)
        return [actor for _, _, actor in found]

    def _moved_s(self, plan: Plan, length: int, counted: int, hit: int, available: int) -> float | None:
        """Seconds to fetch what others hold beyond `hit`, and to prefill the rest; None where prefilling all is faster.
        Of what is fetched the tokens up to `counted` are left out of the price."""
        if self.link is None or not self.link.pays(available - hit, plan.prefill_rate):
            return None
        return self.link.seconds(max(available - counted, 0)) + (length - available) / plan.prefill_rate

    def _source(self, branch: Branch) -> str:
        """One of the engines that hold most of the path."""
        return self.rng.choice(next(sorted(held) for _, _, held in self.held(branch) if held))


def candidates(wave: Wave, branch: Branch) -> list[str]:
    """Home (of a large one the lightest), holders of the last two segments, and `RANDOM` engines drawn at random."""
    if len(wave.home) > MAX_HOMES:
        chosen = dict.fromkeys(wave.lightest(branch.new_tokens, 2))
    else:
        chosen = dict.fromkeys(wave.home)
    chosen.update(dict.fromkeys(wave.recent(branch)))
    names, rng = wave.names, wave.rng
    for _ in range(RANDOM):
        drawn = names[int(rng.random() * len(names))]
        if drawn not in wave.rivals:
            chosen[drawn] = None
    if branch.avoid:
        allowed = [actor for actor in chosen if actor not in branch.avoid]
        return allowed or [wave.allowed(branch)[0]]
    return list(chosen)


def cheapest(wave: Wave, branch: Branch, among: Sequence[str], policy: str = "") -> Placed:
    """The candidate with the lowest J; of equals two are drawn and the one with fewer rows is taken."""
    costs = wave.costs_s(branch, among)
    least = min(costs)
    best = [actor for actor, cost_s in zip(among, costs, strict=True) if cost_s <= least + 1e-9]
    drawn = best if len(best) <= 2 else wave.rng.sample(best, 2)
    last = len(wave.home)
    actor = min(drawn, key=lambda a: (wave.plan(a).rows, wave.home.get(a, last), a))
    others = [(cost_s, other) for cost_s, other in zip(costs, among, strict=True) if other != actor]
    runner_up_s, runner_up = min(others, default=(0.0, ""))
    return wave.price(branch, actor, policy, runner_up, runner_up_s, len(among))


def place(wave: Wave, branches: Sequence[Branch], policy: str = "rsbcm") -> list[Placed]:
    """Place a wave in order."""
    decisions = []
    for branch in branches:
        placed = cheapest(wave, branch, candidates(wave, branch), policy)
        wave.book(branch, placed)
        decisions.append(placed)
    return decisions
