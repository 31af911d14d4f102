"""Engines that go down, hang and come back, and placement while the index does not answer."""

import asyncio
import time

import pytest

from actors.dispatcher import PoolOptions
from actors.fleet import Fleet
from actors.handles import EngineDownError, EngineFailedError, InlineEngine
from actors.local_view import LocalView
from actors.placement import Branch
from actors.rsbcm import RSBCM
from engine.simulated import SimulatedEngine
from search.types import Expansion, Sampling
from tests.actors.shaky import DOWN, IMPATIENT, DeafIndex, Shaky, orders, pool_of, request, shaky, texts, undisturbed
from tests.actors.virtual import run


def test_the_only_engine_is_waited_for():
    a = shaky(faults=[DOWN, DOWN], slow=1)
    wave = orders(2)
    options = PoolOptions(attempts=3, patience_s=30.0)
    found = asyncio.run(pool_of(a, options=options).expand(wave))
    assert texts(found) == undisturbed(wave)
    assert a.readies == 3


def test_what_a_dead_engine_held_is_forgotten():
    async def run():
        a = shaky("a")
        pool = pool_of(a)
        await pool.expand(orders(2))
        assert pool.index.rsbcm.index.stats()["entries"] > 0
        a.faults = [DOWN]
        a._actor = None
        found = await pool.expand(orders(2, tag="later"))
        assert all(outcome.error is None and outcome.cost.predicted_hit == 0 for outcome in found[:1])

    asyncio.run(run())


@pytest.mark.parametrize("what", ["expand", "score"])
def test_all_engines_down_is_an_error_and_no_hang(what):
    engines = [shaky(name, faults=[DOWN] * 99, slow=999) for name in "ab"]
    pool = pool_of(*engines, options=IMPATIENT)
    began = time.monotonic()
    if what == "expand":
        found = asyncio.run(pool.expand(orders(3)))
        assert [outcome.samples for outcome in found] == [()] * 3
    else:
        found = asyncio.run(pool.score([request(i) for i in range(3)]))
        assert [score.p_yes for score in found] == [None] * 3
    assert {item.error for item in found} <= {"the actor died", "no engine answers"}
    assert found[0].error == "the actor died"
    assert time.monotonic() - began < 30.0


def test_no_engine_from_the_start_says_so():
    async def run():
        a = shaky(slow=999)
        pool = pool_of(a, options=IMPATIENT)
        pool.fleet.mark_down("a", "gone")
        return await pool.expand(orders(2)), await pool.score([request(0)]), await pool.stats()

    found, scores, stats = asyncio.run(run())
    assert [outcome.error for outcome in found] == ["no engine answers"] * 2
    assert scores[0].error == "no engine answers"
    assert stats == {"a": {"name": "a", "state": "down"}}


def test_a_hung_engine_is_restarted_once_and_its_orders_done_elsewhere():
    wave = orders(6)
    expected = undisturbed(wave)

    async def run():
        a, b, failures = shaky("a", faults=["hang"] * 2), shaky("b"), []
        pool = pool_of(a, b, failures=failures, options=IMPATIENT)
        both = await asyncio.gather(pool.expand(wave), pool.expand(orders(4, tag="other")))
        assert texts(both[0]) == expected
        assert all(outcome.error is None for found in both for outcome in found)
        assert a.restarts == 1
        assert failures == [("a", "no progress in 1 s")]
        await asyncio.sleep(0)
        assert pool.fleet.up() == ["a", "b"]

    asyncio.run(run())


def test_an_engine_is_not_up_again_before_it_was_killed():
    """A hung engine still answers pings: the order is kill, forget, then wait for the successor."""
    steps = []

    class Watched(Shaky):
        async def restart(self):
            await asyncio.sleep(0.01)
            steps.append("restart")

        async def ready(self):
            steps.append("ready")
            return 1

    async def run():
        async def on_down(name):
            steps.append("forget")

        fleet = Fleet([Watched("a", SimulatedEngine)], lambda *_: None, on_down)
        with pytest.raises(EngineDownError, match="no progress"):
            await fleet.timed("a", asyncio.sleep(600), 0.01)
        assert fleet.up() == []
        assert await fleet.some_up(30.0)
        fleet.close()

    asyncio.run(run())
    assert steps == ["restart", "forget", "ready"]


def test_the_fleet_picks_the_nearest_to_what_is_asked():
    async def run():
        async def on_down(name):
            await asyncio.sleep(600)

        fleet = Fleet([shaky(name) for name in "abc"], lambda *_: None, on_down)
        fleet.loads["a"].rows = 5
        fleet.loads["b"].rows = 1
        assert fleet.pick("a", ()) == "a"
        assert fleet.pick("a", {"a"}) == "c"
        assert fleet.pick("a", {"a", "c"}) == "b"
        assert fleet.pick("a", {"a", "b", "c"}) == "c"
        assert fleet.pick("nobody", ()) == "c"
        fleet.mark_down("c", "gone")
        assert fleet.pick("c", ()) == "b" and fleet.views().keys() == {"a", "b"}
        fleet.mark_down("a", "gone")
        fleet.mark_down("b", "gone")
        assert fleet.pick("a", {"a"}) in "bc"
        assert not await fleet.some_up(0.01)
        fleet.close()

    asyncio.run(run())


def test_without_the_index_branches_still_go_where_their_prefix_is():
    async def run():
        failures = []
        a, b = shaky("a"), shaky("b")
        pool = pool_of(a, b, index=DeafIndex(RSBCM()), failures=failures, options=PoolOptions(rows_per_engine=8))
        first = await pool.expand(orders(1, n=4))
        grown = first[0].samples[0]
        assert first[0].engine == "a"
        child = Expansion("c", "p", "r.0.0", (*orders(1)[0].context, grown.token_ids), 2, Sampling())
        cold = Expansion("d", "q", "r", (tuple(b"another prompt altogether"),), 2, Sampling())
        (warm,), (other,) = await pool.expand([child]), await pool.expand([cold])
        assert warm.cost.predicted_hit == warm.cost.actual_hit == sum(map(len, child.context)) - 1
        assert warm.engine == "a" and other.engine == "b"
        await pool.note_scores([(child.context, 0.5, 2)])
        await pool.finish("p", [child.context[:1]])
        assert {reason for _, reason in failures} == {"no answer"}

    asyncio.run(run())


def test_the_local_view_forgets_the_dead_and_the_old(monkeypatch):
    view = LocalView()
    branch = Branch("b", (b"x", b"y"), (3, 7), 1, 1)
    view.note("a", [b"x", b"y"])
    assert (view.held("a", branch), view.held("b", branch)) == (7, 0)
    view.note("b", [b"x", b"y"])
    assert (view.held("a", branch), view.held("b", branch)) == (7, 7)
    assert tuple(view.holders(b"y")) == ("b", "a"), "the last to grow it comes first"
    view.forget("b")
    assert (view.held("a", branch), view.held("b", branch)) == (7, 0)
    monkeypatch.setattr("actors.local_view._REMEMBERED", 2)
    view.note("a", [b"z", b"w"])
    assert view.held("a", branch) == 0


def test_the_local_view_forgets_what_was_released_and_the_trees_that_ended():
    view = LocalView()
    branch = Branch("b", (b"x", b"y", b"z"), (3, 7, 9), 1, 1)
    view.note("a", branch.keys)
    view.note_use("a", b"x")
    view.release([b"z"])
    assert view.held("a", branch) == 7 and not view.holders(b"z")
    view.end(b"x")
    assert view.held("a", branch) == 0 and view.used(b"x") is None
    view.note("b", branch.keys)
    assert (view.held("a", branch), view.held("b", branch)) == (0, 9)
    assert tuple(view.holders(b"y")) == ("b",), "the same prompt again, elsewhere"


# -- slow, silent or hung ------------------------------------------------------------------------------------------
class Working:
    """A call takes `call_s` and a step every `step_s`; `stats` answers after `answer_s`."""

    killable = True

    def __init__(self, clock, call_s, step_s=1.0, answer_s=0.0):
        self.name, self.clock, self.call_s, self.step_s, self.answer_s = "a", clock, call_s, step_s, answer_s
        self.killed = []
        self.under_way = None

    async def work(self):
        self.under_way = asyncio.ensure_future(asyncio.sleep(self.call_s))
        try:
            await self.under_way
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
            raise EngineDownError("killed") from None
        return self.clock()

    async def stats(self):
        await asyncio.sleep(self.answer_s)
        return {"steps": self.clock() // self.step_s, "waiting": 1}

    async def restart(self):
        self.killed.append(self.clock())
        self.call_s, self.answer_s = 1.0, 0.0
        self.under_way.cancel()

    async def ready(self):
        return 1


def called(limit_s=10.0, calls=1, killable=True, **engine):
    """(what each call gave or why not, when the engine was killed, what the fleet said)"""

    async def main(clock):
        async def on_down(name):
            await asyncio.sleep(0)

        failures = []
        one = Working(clock, **engine)
        one.killable = killable
        fleet = Fleet([one], lambda *failure: failures.append(failure), on_down, clock=clock)
        work = [fleet.timed("a", one.work(), limit_s) for _ in range(calls)]
        found = await asyncio.gather(*work, return_exceptions=True)
        await asyncio.sleep(30)
        assert fleet.up() == ["a"]
        return found, one.killed, failures

    return run(main)


def test_a_slow_engine_that_makes_progress_is_not_killed():
    assert called(call_s=1000.0, step_s=9.0) == ([1000.0], [], [])


def test_an_engine_that_answers_but_does_nothing_is_killed_after_two_limits():
    (error,), killed, failures = called(call_s=1e6, step_s=1e6)
    assert isinstance(error, EngineDownError) and killed == [20.0]
    assert failures == [("a", "no progress in 10 s")]


def test_a_silent_engine_is_killed_after_one_limit_and_the_question():
    (error,), killed, failures = called(call_s=1e6, answer_s=1e6)
    assert isinstance(error, EngineDownError) and killed == [20.0]
    assert failures == [("a", "no answer in 10 s")]


def test_a_call_that_ends_while_the_engine_is_asked_counts():
    assert called(call_s=12.0, answer_s=1e6) == ([12.0], [], [])


def test_one_hang_is_one_kill_whatever_number_of_calls_wait():
    errors, killed, failures = called(call_s=1e6, step_s=1e6, calls=3)
    assert [type(error) for error in errors] == [EngineDownError] * 3
    assert len(killed) == len(failures) == 1


def test_an_engine_that_cannot_be_killed_has_no_limit():
    assert called(call_s=1e6, step_s=1e7, killable=False) == ([1e6], [], [])


def test_an_engine_in_this_process_is_never_built_twice():
    """A second one beside calls still running would take its memory again."""
    built = []

    class Slow(SimulatedEngine):
        def expand(self, requests):
            time.sleep(0.4)
            return super().expand(requests)

    def build():
        built.append(1)
        return Slow()

    async def main():
        pool = pool_of(InlineEngine("a", build))
        found = await pool.expand(orders(2))
        with pytest.raises(EngineFailedError, match="cannot be killed"):
            await pool.engines["a"].restart()
        return found

    assert all(outcome.error is None for outcome in asyncio.run(main()))
    assert built == [1]
