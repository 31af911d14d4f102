"""Case 28 and 29 of a search: what is not needed any more is called back, and the tree does not depend on when."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest

from engine.scripted import ScriptedEngine
from search.budget import Budget
from search.cgee.agreement import Agreement
from search.cgee.gate import Gate
from search.cgee.paper import Paper
from search.driver import TreeSearch
from search.simulated import SimulatedPool
from search.strategies import registry
from search.types import Outcome
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World
from tests.search.lockstep import LockstepPool

EASY = World(p_step=0.97, spread=0.1)
SPLIT = World(p_step=0.6, spread=0.1, lure=0.1, wrong=30)


def solve(world=EASY, name="self_consistency", pool=None, problems=20, events=None, budget=None, **options):
    pool = pool or LockstepPool(world)
    search = TreeSearch(
        pool, registry.create(name, **options), SelfEvaluation(pool), on_event=events, budget=budget or Budget()
    )

    async def run():
        return [await search.run(problem) for problem in world.problems(problems)]

    return asyncio.run(run()), pool


SIXTEEN = {"samples": 16, "wave": 16}


def test_case_28_outstanding_requests_are_cancelled_and_saved_tokens_reported():
    events = []
    results, pool = solve(events=events.append, **SIXTEEN)
    early = [result for result in results if result.stop_reason == "agreed"]
    assert len(early) >= 18
    for result, flight in zip(results, pool.flights, strict=True):
        tree = result.tree
        assert tree.told == set(tree.asked) and tree.in_flight == 0
        assert tree.cancelled == set(flight.cancelled)
        assert result.unused["samples"] == len(tree.cancelled)
        assert len(tree) - 1 == 16 - len(tree.cancelled)
        assert (result.cost.saved > 0) <= bool(tree.cancelled)
        assert result.to_json()["tokens"]["saved"] == result.cost.saved
    assert sum(result.cost.saved > 0 for result in results) >= 15
    cancelled = [event for event in events if event.kind == "cancelled"]
    assert sum(event.data["saved"] for event in cancelled) == sum(result.cost.saved for result in results)
    json.dumps([dict(event.data) for event in cancelled])


def test_all_samples_may_be_asked_for_at_once_and_half_of_the_tokens_saved():
    """40 samples, 4 rows at a time: the engine is never idle, and most of the queue is called back before it starts."""
    options = {"samples": 40, "wave": 40, "problems": 100}
    early, _ = solve(**options)
    full, _ = solve(stop="none", **options)
    spared = [a.cost.generated - b.cost.generated for a, b in zip(full, early, strict=True)]
    assert sum(spared) > 0.5 * sum(result.cost.generated for result in full)
    for result, tokens in zip(early, spared, strict=True):
        assert 0 <= tokens <= result.cost.saved <= len(result.tree.cancelled) * 256


def test_case_28_an_even_split_uses_all_samples():
    results, _ = solve(SPLIT, problems=30, **SIXTEEN)
    done = [result for result in results if result.stop_reason == "done"]
    assert len(done) > 15
    assert all(result.cost.saved == 0 and not result.tree.cancelled for result in done)


@pytest.mark.parametrize("change", [{"deaf": True}, {"backwards": True}, {"rows": 1}, {"rows": 16}], ids=str)
def test_the_tree_does_not_depend_on_timing(change):
    """How fast a cancellation is, in which order outcomes come, and how many rows run at once."""

    def trees(**options):
        results, _ = solve(pool=LockstepPool(EASY, **options), **SIXTEEN)
        return [(r.tree.to_json(), r.answer, dict(r.votes), r.stop_reason, dict(r.unused)) for r in results]

    assert trees(**change) == trees()


def test_best_of_n_cancels_once_a_sample_is_accepted():
    results, _ = solve(World(auc=0.95, tokens=(2, 60)), "best_of_n", accept=0.9, **SIXTEEN)
    accepted = [result for result in results if result.stop_reason == "accepted"]
    assert len(accepted) > 10 and sum(result.cost.saved > 0 for result in accepted) > 5
    assert all(max(node.score for node in result.tree.complete()) >= 0.9 for result in accepted)
    for result in accepted:
        scored = [node.score for node in result.tree.level(1)]
        assert max(scored[:-1], default=0.0) < 0.9 <= scored[-1]


def test_a_strategy_that_recalls_nothing_flies_no_flights():
    _, pool = solve(name="tot", problems=2)
    assert pool.flights == []


def test_a_failed_order_of_a_flight_is_a_failed_branch():
    class Failing(LockstepPool):
        def launch(self, wave):
            flight = super().launch(wave)
            for id in list(flight.outcomes)[::3]:
                lost = flight.outcomes[id]
                sample = replace(lost.samples[0], text="", token_ids=(1,))
                flight.outcomes[id] = Outcome(id, lost.problem_id, lost.node_id, (sample,), error="engine broke")
            return flight

    results, _ = solve(pool=Failing(EASY), **SIXTEEN)
    assert all(result.answer is not None and result.error is None for result in results)


@pytest.mark.parametrize("tokens", [50, 333, 700])
def test_a_token_budget_binds_flights_too(tokens):
    results, _ = solve(problems=10, budget=Budget(tokens=tokens), **SIXTEEN)
    assert all(result.cost.generated <= tokens for result in results)


def test_an_engine_that_cannot_cancel_gets_whole_waves(lab):
    one = lab(ScriptedEngine(["Answer: 5"]))
    found = one.solve("self_consistency", options=SIXTEEN)
    assert (one.count("calls"), one.count("expansions"), found.cost.saved) == (1, 16, 0)


def test_orders_fly_alone_through_the_dispatcher(lab):
    """An engine that says it can cancel: one call an order, and what is called back in time never starts."""
    engine = ScriptedEngine(["Answer: 5"], capabilities=frozenset({"confidence", "cancel"}))
    one = lab(engine)
    found = one.solve("self_consistency", options=SIXTEEN)
    assert (found.answer, found.stop_reason) == ("5", "agreed")
    assert 4 <= one.count("calls") == one.count("expansions") <= 16
    assert found.tree.told == set(found.tree.asked) and len(found.tree.cancelled) == 12


def test_the_dispatcher_tells_the_engine_that_works_on_an_order(lab):
    class Cancellable(ScriptedEngine):
        concurrent = True

        def __init__(self):
            super().__init__(["Answer: 5"], capabilities=frozenset({"confidence", "cancel"}))
            self.recalled, self.seen = [], []
            self.told, self.one_by_one = threading.Event(), threading.Lock()

        def expand(self, requests):
            """All but the first four orders run until some are called back."""
            if int(requests[0].id.rsplit("/", 1)[1]) >= 4:
                self.told.wait(30)
            with self.one_by_one:
                self.seen += [request.id for request in requests]
                return super().expand(requests)

        def cancel(self, ids):
            self.recalled += ids
            self.told.set()

    engine = Cancellable()
    lab(engine).solve("self_consistency", options=SIXTEEN)
    needed = {id for id in engine.seen if id.rpartition("/")[2] in ("0", "1", "2", "3")}
    assert engine.recalled and len(needed) == 4 and not needed & set(engine.recalled)
    assert len({*engine.recalled, *engine.seen}) == 16
    assert len({id.split("/", 1)[0] for id in (*engine.recalled, *engine.seen)}) == 16  # each call is told apart


class Log:
    """A log in memory; `search.wave_log.WaveLog`."""

    def __init__(self, kept=(), landed=()):
        self.before, self.kept, self.came = list(kept), [], []
        self._landed = {outcome.expansion_id: outcome for outcome in landed}

    def landed(self):
        return self._landed

    def keep(self, outcome):
        self.came.append(outcome)

    def waves(self):
        return self.before

    async def append(self, wave):
        self.kept.append(wave)


def test_recalled_orders_replay_to_the_same_tree():
    """A log of a search that flew: told again by any pool, in wave order, with what was recalled left out again."""
    world = World(p_step=0.9, spread=0.1)
    options = {"samples": 16, "wave": 8}
    cancelled = 0
    for problem in world.problems(10):

        def run(log, pool=None, problem=problem):
            pool = pool or LockstepPool(world)
            search = TreeSearch(pool, registry.create("self_consistency", **options))
            return asyncio.run(search.run(problem, log))

        whole_log = Log()
        whole = run(whole_log)
        cancelled += len(whole.tree.cancelled)
        for wave in whole_log.kept:
            assert [o.expansion_id for o in wave.outcomes] == [i for i in whole.tree.asked if i in _ids(wave)]
        for cut in range(1, len(whole_log.kept) + 1):
            again = run(Log(whole_log.kept[:cut]), LockstepPool(world, backwards=True))
            assert again.tree.to_json() == whole.tree.to_json()
            assert again.tree.cancelled == whole.tree.cancelled
            assert (again.answer, again.stop_reason, again.unused) == (whole.answer, whole.stop_reason, whole.unused)
        assert again.cost.generated == whole.cost.generated and again.cost.saved == whole.cost.saved
    assert cancelled > 10


@pytest.mark.parametrize("backwards", [False, True])
def test_a_flight_that_was_cut_off_goes_on_from_what_had_landed(backwards):
    """However far it was: what is back is not flown again, and what nobody needs is never sent."""
    world, options = World(p_step=0.9, spread=0.1), {"samples": 16, "wave": 16}
    spared = 0
    for problem in world.problems(10):

        def run(log, problem=problem):
            pool = LockstepPool(world, backwards=backwards)
            search = TreeSearch(pool, registry.create("self_consistency", **options))
            return asyncio.run(search.run(problem, log)), pool

        whole_log = Log()
        whole, _ = run(whole_log)
        assert len(whole_log.came) >= len(whole.tree) - 1
        for cut in range(len(whole_log.came) + 1):
            landed = whole_log.came[:cut]
            again, pool = run(Log(landed=landed))
            assert again.tree.to_json() == whole.tree.to_json()
            assert (again.answer, again.stop_reason, again.unused) == (whole.answer, whole.stop_reason, whole.unused)
            sent = {id for flight in pool.flights for id in flight.start}
            assert not sent & {outcome.expansion_id for outcome in landed}
            assert len(sent) <= 16 - cut
            spared += 16 - cut - len(sent)
    assert backwards or spared > 10


def _ids(wave):
    return {outcome.expansion_id for outcome in wave.outcomes}


def judged(rule, pool=None, **options):
    pool = pool or LockstepPool(EASY)
    gate = None if rule is None else Gate(rule)
    search = TreeSearch(pool, registry.create("best_of_n", **options), SelfEvaluation(pool), gate=gate)

    async def run():
        return [await search.run(problem) for problem in EASY.problems(20)]

    return asyncio.run(run()), pool


def test_a_rule_that_orders_a_wave_gets_the_whole_wave():
    """Paths that land one by one would be waves of one branch, which such a rule never skips."""
    lenient = Paper(tau_conf=0.1, gap=0.0, rel=0.0)
    found, pool = judged(lenient, samples=8, wave=8)
    whole, _ = judged(lenient, SimulatedPool(EASY), samples=8, wave=8)
    assert pool.flights == [] and all(result.skips.by_rule == {"paper": 1} for result in found)
    assert [result.tree.to_json() for result in found] == [result.tree.to_json() for result in whole]


def test_a_rule_that_settles_the_answer_sees_what_lands_and_orders_are_still_called_back():
    found, pool = judged(Agreement(), samples=8, wave=8, accept=0.9)
    plain, _ = judged(None, samples=8, wave=8, accept=0.9)
    assert pool.flights and any(result.tree.cancelled for result in found)
    assert sum(result.skips.saved_verifications for result in found) > 0
    assert sum(result.cost.verified for result in found) < sum(result.cost.verified for result in plain)
    for result in found:
        assert len(result.tree) - 1 == result.skips.decisions
