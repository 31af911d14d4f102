"""Case 22: what a comparison says, computed by hand and on searches of known quality."""

import asyncio
import json

import pytest

from search.checkers import Game24
from search.comparison import Comparison, Record
from search.driver import TreeSearch
from search.simulated import SimulatedPool
from search.strategies import registry
from search.types import Problem
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World


def record(strategy, problem, correct, scored=(), **more):
    facts = {
        "answer": "1", "oracle": correct, "generated": 10, "verified": 4, "prefilled": 0, "saved": 0, "seconds": 0.5,
        "stop_reason": "done",
    }  # fmt: skip
    return Record(strategy, str(problem), correct=correct, scored=tuple(scored), **{**facts, **more})


def comparison(**right):
    """strategy -> which of its problems are right, as a text of + and -."""
    found = Comparison("greedy")
    for name, marks in right.items():
        for i, mark in enumerate(marks):
            found.add(record(name, i, {"+": True, "-": False, "?": None}[mark]))
    return found


def test_accuracy_interval_and_the_paired_test():
    base, other = comparison(greedy="++--------", mcts="+-++++++--").lines()
    assert (base.accuracy, base.graded, base.p_value, base.warning) == (0.2, 10, None, None)
    assert base.interval == pytest.approx((0.0252, 0.5561), abs=1e-4)
    assert (other.accuracy, other.better, other.worse) == (0.7, 6, 1)
    assert other.p_value == pytest.approx(0.125)
    assert other.warning is None


def test_case_22_where_search_is_below_greedy_it_says_so():
    few, many = comparison(greedy="+++++-----", few="++--------", many="-----+----").lines()[1:]
    assert few.warning == "few is below greedy: 3 problems lost and 0 won of 10 (p = 0.25, may be chance)"
    assert "5 problems lost and 1 won" in many.warning
    (sure,) = comparison(greedy="+" * 12, lost="-" * 12).lines()[1:]
    assert "p = 0.000488, more than chance" in sure.warning


def test_problems_without_a_known_answer_count_for_cost_only():
    base, other = comparison(greedy="+?-", mcts="??+").lines()
    assert (base.problems, base.graded, base.accuracy) == (3, 2, 0.5)
    assert (other.graded, other.better, other.worse) == (1, 1, 0)
    (unknown,) = comparison(greedy="??").lines()
    assert (unknown.accuracy, unknown.oracle, unknown.interval) == (None, None, (0.0, 1.0))


def test_costs_are_means_and_reasons_are_counted():
    found = Comparison("greedy")
    found.add(record("greedy", 1, True, generated=10, seconds=1.0, stop_reason="done"))
    found.add(record("greedy", 2, False, generated=30, seconds=2.0, stop_reason="tokens", oracle=True, error="broke"))
    (line,) = found.lines()
    assert (line.generated, line.seconds, line.oracle, line.failed) == (20, 1.5, 1.0, 1)
    assert line.stop_reasons == {"done": 1, "tokens": 1}


def test_the_verifier_is_judged_over_all_paths_and_within_problems():
    """Within each problem the right path is always above; over all, an easy problem's wrong one is above both."""
    found = Comparison("greedy")
    found.add(record("best_of_n", 1, True, scored=[(0.9, True), (0.8, False)]))
    found.add(record("best_of_n", 2, True, scored=[(0.3, True), (0.2, False)]))
    (line,) = found.lines()
    assert (line.auc, line.auc_within) == (0.75, 1.0)


def test_records_survive_json():
    one = record("mcts", 1, True, scored=[(0.5, True), (0.25, False)], error=None)
    assert Record.from_json(json.loads(json.dumps(one.to_json()))) == one
    with pytest.raises((TypeError, KeyError)):
        Record.from_json({"strategy": "mcts"})


def run(world, name, problems, **options):
    pool = SimulatedPool(world)
    search = TreeSearch(pool, registry.create(name, **options), SelfEvaluation(pool))

    async def go():
        return [await search.run(problem) for problem in problems]

    return asyncio.run(go())


def test_searches_in_the_simulated_world():
    """AUC of the verifier as it was made (0.8), oracle above the choice, and a significant gain."""
    world = World(auc=0.8)
    found = Comparison("greedy")
    for name in ("greedy", "best_of_n"):
        for result in run(world, name, world.problems(150)):
            found.add(Record.of(name, result))
    greedy, best = found.lines()
    assert (greedy.auc, greedy.oracle) == (None, greedy.accuracy)
    assert abs(best.auc - 0.8) < 0.06
    assert best.oracle > best.accuracy > greedy.accuracy
    assert best.p_value < 1e-3 and best.warning is None
    assert best.generated == pytest.approx(800, rel=0.05)


def test_a_problem_with_a_checker_is_graded_by_it():
    problem = Problem("Use 1 4 7 8", kind="text", checker=Game24("1 4 7 8"))
    (result,) = run(World(), "greedy", [problem])
    found = Record.of("greedy", result)
    assert (found.correct, found.oracle) == (False, False)
