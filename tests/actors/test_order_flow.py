"""Credits and late binding, fairness, hedging, deadlines: all in virtual time."""

import asyncio
from dataclasses import replace

import pytest

from actors.dispatcher import PoolOptions
from actors.orders import Flow, Order, ReadyQueue
from actors.placement import Branch
from actors.rates import EngineLoad
from actors.transfer import Mover
from engine.text_engine import Latency
from tests.actors.virtual import LATENCY, cluster, grow, order, prompt, run

OPTIONS = PoolOptions(rows_per_engine=4, patience_s=30.0)


def wave(problem, count, n=1, step=20, root=None):
    root = root or prompt(problem, 400)
    return [order(problem, "r", (root,), n, step, index) for index in range(count)]


def texts(outcomes):
    return [[sample.token_ids for sample in outcome.samples] for outcome in outcomes]


def flat_run(waves, engines=1, concurrent=False, options=OPTIONS, before=None, **more):
    """(outcomes by wave, seconds, pool) of waves that start at once."""

    async def main(clock):
        pool = cluster(clock, engines, options=options, concurrent=concurrent, **more)
        if before is not None:
            await before(pool)
        found = await asyncio.gather(*(pool.expand(one) for one in waves))
        pool.check_integrity()
        return found, clock(), pool

    return run(main)


# -- credits -------------------------------------------------------------------------------------------------------
def test_an_engine_has_no_more_rows_than_it_decodes_and_a_few():
    found, _, pool = flat_run([wave("p", 40)], concurrent=True)
    (engine,) = pool.engines.values()
    assert all(outcome.error is None for outcome in found[0])
    assert engine.most_rows <= 4 + 2
    assert len(engine.calls) >= 40 / 6


def test_an_engine_that_serves_call_after_call_gets_full_calls_one_at_a_time():
    _, seconds, pool = flat_run([wave("p", 40)])
    (engine,) = pool.engines.values()
    assert [len(call) for call in engine.calls] == [4] * 10 and engine.most_rows == 4
    assert seconds == pytest.approx(400 / 8000 + 10 * (8 * 0.02 + 0.01), rel=0.01)


def test_an_order_larger_than_an_engine_goes_alone():
    _, _, pool = flat_run([wave("p", 2, n=9)])
    (engine,) = pool.engines.values()
    assert [len(call) for call in engine.calls] == [1, 1]


def test_waves_that_are_ready_at_once_share_a_call():
    _, _, pool = flat_run([wave(f"p{i}", 1) for i in range(4)])
    (engine,) = pool.engines.values()
    assert [len(call) for call in engine.calls] == [4]


def test_two_searches_of_one_problem_never_share_a_call():
    """Their orders have equal ids."""
    found, _, pool = flat_run([wave("p", 2), wave("p", 2)])
    (engine,) = pool.engines.values()
    assert sorted(map(len, engine.calls)) in ([1, 1, 2], [2, 2])
    assert texts(found[0]) == texts(found[1])


def queue_order(name, problem, n=1, alone=False):
    async def make():
        return Flow([], lambda outcome: None)

    flow = asyncio.run(make())
    work = order(problem, name, (prompt(problem, 10),), n, 4)
    return Order(work, Branch(work.id, (), (), n, 4), flow, alone, 0.0)


def test_problems_take_turns_and_none_waits_for_more_than_a_turn_of_each_other():
    queue = ReadyQueue(quantum=4)
    for number in range(20):
        queue.put(queue_order(f"n{number}", "wide"))
    for number in range(3):
        queue.put(queue_order(f"n{number}", "small"))
    taken = [[o.work.problem_id for o in queue.take(4, whole=True)] for _ in range(3)]
    assert taken == [["wide"] * 4, ["small"] * 3 + ["wide"], ["wide"] * 4]
    assert len(queue) == 23 - 12
    queue.discard(queue.last()[0])
    assert sum(1 for _ in queue) == len(queue) == 10


def test_rows_alone_and_equal_ids_end_a_call():
    queue = ReadyQueue(quantum=8)
    first, second = queue_order("a", "p", n=3), queue_order("b", "p", n=3)
    for one in (first, second, queue_order("a", "p"), queue_order("c", "p", alone=True)):
        queue.put(one)
    assert queue.take(4, whole=True) == [first]
    assert queue.take(1, whole=False) == [second]
    assert [o.work.node_id for o in queue.take(9, whole=True)] == ["a"]
    assert [o.work.node_id for o in queue.take(9, whole=True)] == ["c"]
    assert queue.take(9, whole=True) == [] and queue.last() == ()


def test_a_small_problem_beside_a_wide_one_is_not_starved():
    async def main(clock):
        pool = cluster(clock, 1, options=OPTIONS)

        async def timed(one):
            await pool.expand(one)
            return clock()

        wide = asyncio.ensure_future(timed(wave("wide", 80)))
        await asyncio.sleep(0.1)
        small = await timed(wave("small", 4))
        return small, await wide

    small, wide = run(main)
    assert small < 0.2 * wide


# -- late binding --------------------------------------------------------------------------------------------------
def test_an_idle_engine_takes_what_waits_for_another():
    """All of the wave is planned for the tree's home; while that works, the other engine becomes free."""

    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS, latency=Latency(0.01, 8000.0, 0.1))
        await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "pq"))
        homes = {name: set(pool._local.used(pool.keys.of((prompt(name, 400),))[0])) for name in "pq"}
        assert homes["p"] != homes["q"]
        began = clock()
        await asyncio.gather(*(pool.expand(wave("p", 4, root=prompt("p", 400))) for _ in range(6)))
        pool.check_integrity()
        return clock() - began, pool

    seconds, pool = run(main)
    assert pool.flow.counts["moved"] > 0
    assert seconds < 0.75 * 6 * (20 * 0.1 + 0.01)


def test_of_orders_that_move_together_the_first_brings_the_prompt_for_the_others():
    async def main(clock):
        options = PoolOptions(rows_per_engine=4, patience_s=30.0, placement="sticky")
        pool = cluster(clock, 2, options=options, latency=Latency(0.01, 8000.0, 0.1))
        pool.flow.options = replace(pool.flow.options, moves=True)
        await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "qs"))
        moved = set()
        pool.flow.on_moved = lambda tree, placed: moved.add(placed.id)
        waves = [[order("p", "r", (prompt("p", 400),), 1, 20, 4 * n + i) for i in range(4)] for n in range(6)]
        found = await asyncio.gather(*(pool.expand(one) for one in waves))
        return [one.cost for wave in found for one in wave if one.expansion_id in moved]

    costs = run(main)
    assert len(costs) > 4
    assert [cost.predicted_hit for cost in costs].count(0) == 1
    assert all(cost.predicted_hit == cost.actual_hit and not cost.mispredicted for cost in costs)


class Links:
    """KV goes from one virtual engine to another at 100,000 tokens/s."""

    async def move(self, source, target, key, start):
        data = source.actor.export_kv(key, start)
        await asyncio.sleep(0.001)
        return target.actor.import_kv(data)


@pytest.mark.parametrize("tokens_per_s", [1e6, 1e3])
def test_orders_that_move_take_their_kv_with_them_where_that_is_faster(tokens_per_s):
    async def main(clock):
        options = PoolOptions(rows_per_engine=4, patience_s=30.0, placement="sticky")
        mover = Mover(Links(), tokens_per_s, clock)
        pool = cluster(clock, 2, options=options, latency=Latency(0.01, 8000.0, 0.1), mover=mover)
        pool.flow.options = replace(pool.flow.options, moves=True)
        await asyncio.gather(*(pool.expand(wave(name, 4)) for name in "qs"))
        moved = {}
        pool.flow.on_moved = lambda tree, placed: moved.update({placed.id: placed})
        first = (await pool.expand([order("p", "r", (prompt("p", 400),), 4, 20)]))[0]
        children = [(prompt("p", 400), sample.token_ids) for sample in first.samples]
        waves = [[order("p", f"{i}", child, 1, 20, n) for i, child in enumerate(children)] for n in range(6)]
        found = await asyncio.gather(*(pool.expand(one) for one in waves))
        pool.check_integrity()
        costs = [one.cost for wave in found for one in wave if one.expansion_id in moved]
        return costs, list(moved.values()), mover.counts

    costs, moved, counts = run(main)
    assert len(costs) > 4 and not any(cost.mispredicted for cost in costs)
    prefilled = sum(cost.prefilled for cost in costs)
    if tokens_per_s == 1e6:
        assert counts.moves >= 1 and not counts.failures
        assert prefilled <= 3 * 8  # a step's 8 tokens are prefilled faster than fetched
        assert [placed.source for placed in moved if placed.source] == [moved[0].runner_up]
        assert moved[0].transfer_s < moved[0].recompute_s
    else:
        assert prefilled >= 400 and not counts.moves


def test_case_45_four_engines_do_nearly_four_times_the_work_of_one():
    def seconds(engines):
        async def main(clock):
            pool = cluster(clock, engines, step=40, options=PoolOptions(rows_per_engine=8))
            trees = (
                grow(pool, f"p{i}", prompt(f"p{i}", 600), beam=2, branching=4, depth=4, step=40) for i in range(32)
            )
            await asyncio.gather(*trees)
            return clock()

        return run(main)

    assert seconds(1) / seconds(4) > 3.6


# -- stragglers ----------------------------------------------------------------------------------------------------
async def measured(pool):
    """Let every engine have a few calls."""
    for number in range(6):
        names = [f"warm{number}-{i}" for i in range(len(pool.engines))]
        await asyncio.gather(*(pool.expand(wave(name, 4)) for name in names))
        await asyncio.gather(*(pool.finish(name, [(prompt(name, 400),)]) for name in names))


def late_run(concurrent=False, hedging=True):
    async def main(clock):
        options = PoolOptions(rows_per_engine=4, hedging=hedging)
        pool = cluster(clock, 3, options=options, concurrent=concurrent)
        await measured(pool)
        for engine in pool.engines.values():
            engine.delays = []
        pool.engines["e0"].delays = [50.0]
        began = clock()
        found = await asyncio.gather(*(pool.expand(wave(f"q{i}", 2)) for i in range(3)))
        took = clock() - began
        pool.check_integrity()
        await asyncio.sleep(60)
        pool.check_integrity()
        assert all(load.rows == load.calls == load.prefill_tokens == 0 for load in pool.fleet.loads.values())
        return took, found, pool

    return run(main)


@pytest.mark.parametrize("concurrent", [False, True])
def test_what_a_straggler_is_late_with_is_done_by_another_and_is_the_same(concurrent):
    plain, expected, _ = late_run(concurrent, hedging=False)
    took, found, pool = late_run(concurrent)
    assert plain > 50 and took < 10
    assert [texts(one) for one in found] == [texts(one) for one in expected]
    assert pool.flow.counts["hedged"] == pool.flow.counts["hedges_won"] > 0
    assert pool.engines["e0"].cancelled


def test_a_straggler_keeps_nothing_of_a_tree_that_has_ended():
    async def main(clock):
        pool = cluster(clock, 3, options=PoolOptions(rows_per_engine=4))
        await measured(pool)
        late = pool.engines["e0"]
        inner, late.delays = late.expand, [50.0]

        async def expand(orders, token):
            found = await inner(orders, token)
            late.actor.expand(orders, f"{token}-end")  # what rows have written is held once they end
            return found

        late.expand = expand
        found = await asyncio.gather(*(pool.expand(wave(f"q{i}", 2)) for i in range(3)))
        await asyncio.gather(*(pool.finish(f"q{i}", [(prompt(f"q{i}", 400),)]) for i in range(3)))
        assert clock() < 50 and all(outcome.error is None for one in found for outcome in one)
        await asyncio.sleep(100)
        assert pool.flow.counts["hedges_won"] > 0
        return {name: engine.actor.engine.tree.num_tokens for name, engine in pool.engines.items()}

    assert all(held <= len("q") for held in run(main).values())


def test_nothing_is_late_before_rates_are_known():
    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS)
        pool.engines["e0"].delays = [90.0]
        await pool.expand(wave("p", 2))
        return clock(), pool.flow.counts["hedged"]

    seconds, hedged = run(main)
    assert seconds > 90 and hedged == 0


def test_a_hung_engine_is_replaced_after_a_deadline_from_its_rates():
    async def main(clock):
        pool = cluster(clock, 2, options=PoolOptions(rows_per_engine=4, hedging=False, call_timeout_s=3600.0))
        await measured(pool)
        pool.engines["e0"].hang = True
        began = clock()
        found = await asyncio.gather(*(pool.expand(wave(f"q{i}", 2)) for i in range(2)))
        took = clock() - began
        assert all(outcome.error is None for one in found for outcome in one)
        return took, pool.engines["e0"].restarts

    took, restarts = run(main)
    assert 120 <= took < 180 and restarts == 1


# -- slow start ----------------------------------------------------------------------------------------------------
def test_a_new_engine_among_measured_ones_gets_little_until_it_was_measured():
    load = EngineLoad()
    assert load.room(16, concurrent=True) == 18 and load.room(16, concurrent=False) == 16
    load.begin_slowly(EngineLoad(prefill_rate=9.0, step_s=2.0).view())
    assert (load.prefill_rate, load.step_s) == (9.0, 2.0)
    rooms = []
    for _ in range(4):
        rooms.append((load.room(16, concurrent=True), load.room(16, concurrent=False)))
        load.learn([])
    assert rooms == [(4, 4), (9, 8), (18, 16), (18, 16)]
    load.calls, load.sent_rows = 1, 15
    assert (load.room(16, concurrent=True), load.room(16, concurrent=False)) == (3, 0)


def test_an_engine_that_was_slow_once_is_measured_again():
    """Rates are learned by work alone, and nobody sends work to the slower of two engines while the other has room."""

    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS)
        engines = list(pool.engines.values())
        slow = replace(LATENCY, step_s=LATENCY.step_s * 10)
        engines[1].actor.engine.latency = slow
        await asyncio.gather(*(pool.expand(wave(f"first{i}", 4)) for i in range(4)))
        engines[1].actor.engine.latency = LATENCY
        calls, known = [], []
        for i in range(40):
            await pool.expand(wave(f"p{i}", 1))
            calls.append(len(engines[1].calls))
            known.append(pool.fleet.loads[engines[1].name].step_s)
            await asyncio.sleep(4.0)
        return calls, known

    calls, known = run(main)
    assert calls[0] == calls[4] and known[0] > 3 * LATENCY.step_s
    assert calls[-1] > calls[0] + 5
    assert known[-1] == pytest.approx(LATENCY.step_s, rel=0.2)


def test_an_engine_that_is_slow_is_asked_again_but_seldom():
    async def main(clock):
        pool = cluster(clock, 2, options=OPTIONS, speeds=[1.0, 0.1])
        slow = list(pool.engines.values())[1]
        await asyncio.gather(*(pool.expand(wave(f"first{i}", 4)) for i in range(4)))
        before = len(slow.calls)
        for i in range(100):
            await pool.expand(wave(f"p{i}", 1))
            await asyncio.sleep(4.0)
        return len(slow.calls) - before

    assert 1 <= run(main) <= 400 / 30 + 1


def test_faster_engines_get_more():
    async def main(clock):
        pool = cluster(clock, 4, speeds=[1.0, 1.0, 2.0, 2.0], step=40, options=PoolOptions(rows_per_engine=8))
        trees = (grow(pool, f"p{i}", prompt(f"p{i}", 600), beam=2, branching=4, depth=5, step=40) for i in range(40))
        await asyncio.gather(*trees)
        return [len(engine.calls) for engine in pool.engines.values()], clock()

    calls, seconds = run(main)
    assert calls[2] + calls[3] > 1.5 * (calls[0] + calls[1])
    assert seconds < 1.25 * sum(calls) * (40 * LATENCY.step_s + 0.01) / 6.0 + 1.0
