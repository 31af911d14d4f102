"""Replay: a search that ended after any wave goes on to the result it would have had, and asks no engine twice."""

import asyncio

import pytest

from engine.base import Branch
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.strategies import registry
from search.types import Outcome, Problem
from search.wave_log import ReplayError, WaveRecord

PROBLEM = Problem("What is 6 * 7?", "p")


class Stop(Exception):
    pass


class Memory:
    """A log in memory that ends the search behind its `stop_at`-th wave. landed: of the wave behind `waves`."""

    def __init__(
        self, waves: list[WaveRecord], stop_at: int | None = None, landed: dict[str, Outcome] | None = None
    ) -> None:
        self.kept = waves
        self.before = len(waves)
        self.stop_at = stop_at
        self._landed = landed or {}
        self.came: list[Outcome] = []

    def landed(self) -> dict[str, Outcome]:
        return self._landed

    def keep(self, outcome: Outcome) -> None:
        self.came.append(outcome)

    def waves(self) -> list[WaveRecord]:
        return self.kept[: self.before]

    async def append(self, wave: WaveRecord) -> None:
        self.kept.append(wave)
        if len(self.kept) == self.stop_at:
            raise Stop


@pytest.fixture
def run(lab):
    def run(strategy: str, log: Memory, budget: dict | None = None):
        engine = SimulatedEngine(depth=6)
        events: list[str] = []
        search = lab(engine).search(
            strategy, budget=Budget(**budget or {}), on_event=lambda event: events.append(event.kind)
        )
        return asyncio.run(search.run(PROBLEM, log)), engine.counts["generated"], events

    return run


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("budget", [{}, {"tokens": 150}, {"verifications": 5}, {"nodes": 4}])
def test_cut_off_after_any_wave(run, plain, name: str, budget: dict):
    log = Memory([])
    whole, total, events = run(name, log, budget)
    assert len(log.kept) >= 1 and "resume" not in events
    for cut in range(1, len(log.kept) + 1):
        first = Memory([], cut)
        with pytest.raises(Stop):
            run(name, first, budget)
        again, generated, events = run(name, Memory(first.kept), budget)
        assert plain(again) == plain(whole)
        assert _rest(again) == _rest(whole)
        assert generated == total - sum(o.cost.generated for w in log.kept[:cut] for o in w.outcomes)
        assert len(first.kept) == len(log.kept)
        assert events[:2] == ["start", "resume"] and events.count("wave") == len(log.kept) - cut


def test_merged_siblings_are_counted_over_processes(lab):
    """Four samples say two things: two of them are merged in each wave."""
    texts = ["2 + 2 = 4.", "So 2 + 2 = 4.", "3 + 3 = 6.", "So 3 + 3 = 6."]

    def run(log: Memory) -> list[int]:
        def script(path, served):
            return Branch(tuple(texts[served % 4].encode()), texts[served % 4], "step", confidence=0.5)

        counts: list[int] = []
        search = lab(ScriptedEngine(script)).search(
            "tot",
            options={"k": 4, "b": 1, "max_depth": 3},
            merge=True,
            on_event=lambda event: counts.append(event.data["merged"]) if event.kind == "wave" else None,
        )
        asyncio.run(search.run(PROBLEM, log))
        return counts

    log = Memory([])
    whole = run(log)
    assert whole == [2, 4, 6] and [wave.merged for wave in log.kept] == whole
    assert run(Memory(log.kept[:1])) == whole[1:]


@pytest.mark.parametrize("name", registry.names())
def test_cut_off_within_a_wave_costs_only_the_orders_in_flight(run, plain, name: str):
    """Every share of a wave's outcomes that had come back is used, of every wave; only the rest is grown again."""
    log = Memory([])
    whole, total, _ = run(name, log)
    waves = list(log.kept)
    assert {o.expansion_id for o in log.came} == {o.expansion_id for wave in waves for o in wave.outcomes}
    for cut, wave in enumerate(waves):
        ids = [outcome.expansion_id for outcome in wave.outcomes]
        for back in ({*ids[:1]}, {*ids[1:]}, {*ids[::2]}, {*ids}):
            landed = {o.expansion_id: o for o in log.came if o.expansion_id in back}
            again, generated, _ = run(name, Memory(waves[:cut], landed=landed))
            assert plain(again) == plain(whole) and _rest(again) == _rest(whole)
            spared = [*landed.values(), *(o for w in waves[:cut] for o in w.outcomes)]
            assert generated == total - sum(o.cost.generated for o in spared)


def _rest(result):
    cost = result.cost
    counts = (cost.generated, cost.verified)
    return (result.answer, result.text, result.stop_reason, result.votes, result.unused, result.warnings, counts)


def test_seconds_of_an_earlier_process_count(lab):
    clock = [0.0]

    def tick() -> float:
        clock[0] += 1.0
        return clock[0]

    log = Memory([], 2)
    with pytest.raises(Stop):
        asyncio.run(lab(SimulatedEngine()).search("mcts", clock=tick).run(PROBLEM, log))
    spent = log.kept[-1].seconds
    assert spent > 2
    more = lab(SimulatedEngine()).search("mcts", clock=tick, budget=Budget(seconds=spent + 0.5))
    result = asyncio.run(more.run(PROBLEM, Memory(log.kept)))
    assert (result.stop_reason, len(log.kept)) == ("seconds", 2)


def test_a_failing_log_ends_the_search_and_frees_its_kv(lab):
    engine = SimulatedEngine()
    with pytest.raises(Stop):
        asyncio.run(lab(engine).search("tot").run(PROBLEM, Memory([], 1)))
    assert engine.tree.memory()["kv_bytes"] == 0


def test_a_strategy_that_asks_for_something_else_is_refused(run):
    log = Memory([])
    run("tot", log)
    with pytest.raises(ReplayError, match="wave 1 of the journal"):
        run("self_consistency", Memory(log.kept))
