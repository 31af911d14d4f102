"""The simulated world is what it says, and searches in it do what theory says.

Each statistical test has a fixed seed; the false-alarm probability it states is the chance that a right implementation
would fail it under another seed.
"""

import asyncio
import math
from statistics import fmean

import pytest

from search.driver import TreeSearch
from search.paired import by_luck
from search.result import SearchResult
from search.simulated import SimulatedPool
from search.strategies import registry
from search.verifiers.auc import auc
from search.verifiers.self_evaluation import SelfEvaluation
from search.world import World


def solve(
    world: World, name: str, problems: int, seed: int = 0, merge: bool | None = None, **options
) -> list[SearchResult]:
    pool = SimulatedPool(world)
    search = TreeSearch(pool, registry.create(name, **options), SelfEvaluation(pool), seed=seed, merge=merge)

    async def run() -> list[SearchResult]:
        return [await search.run(problem) for problem in world.problems(problems)]

    return asyncio.run(run())


def turned(base: list[SearchResult], other: list[SearchResult]) -> tuple[int, int]:
    """Problems that only `other`, and only `base`, got right."""
    pairs = [(bool(a.correct), bool(b.correct)) for a, b in zip(base, other, strict=True)]
    return sum(not a and b for a, b in pairs), sum(a and not b for a, b in pairs)


# -- the world -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("wanted", [0.5, 0.7, 0.9])
def test_the_verifier_has_the_auc_it_was_given(wanted):
    """3,000 finished paths: 6 standard errors of an AUC are 0.063 at most; false alarm below 1e-8."""
    found = solve(World(auc=wanted, spread=0.0), "best_of_n", 375, samples=8, accept=1.0)
    nodes = [(node.score, result.tree, node) for result in found for node in result.tree.complete()]
    right = [tree.text(node).endswith(str(tree.problem.reference)) for _, tree, node in nodes]
    assert abs(auc([(score, label) for (score, _, _), label in zip(nodes, right, strict=True)]) - wanted) < 0.063


def test_the_confidence_has_the_auc_it_was_given():
    found = solve(World(confidence_auc=0.75, spread=0.0), "self_consistency", 375, samples=8, stop="none")
    nodes = [(node, result.tree) for result in found for node in result.tree.complete()]
    right = [tree.text(node).endswith(str(tree.problem.reference)) for node, tree in nodes]
    assert (
        abs(auc([(node.thought.confidence, label) for (node, _), label in zip(nodes, right, strict=True)]) - 0.75)
        < 0.063
    )


@pytest.mark.parametrize("name", ["greedy", "self_consistency"])
def test_a_path_is_right_if_all_its_steps_are(name):
    """p^4 with p = 0.8: 0.41, and 6 standard errors of 1,500 problems are 0.077; false alarm below 1e-8."""
    options = {"samples": 1} if name == "self_consistency" else {}
    found = solve(World(spread=0.0), name, 1500, **options)
    assert abs(fmean(bool(result.correct) for result in found) - 0.8**4) < 0.077


def test_steps_and_whole_samples_take_the_same_tokens():
    """5 pieces of 10 to 30 tokens; 6 standard errors of 400 are 4."""
    for name in ("greedy", "self_consistency"):
        found = solve(World(), name, 400, **({"samples": 1} if name == "self_consistency" else {}))
        assert abs(fmean(result.cost.generated for result in found) - 100) < 4


def test_a_world_is_a_function_of_its_seed():
    first, again, other = ([result.text for result in solve(World(seed=seed), "greedy", 20)] for seed in (1, 1, 2))
    assert first == again and first != other
    assert [r.text for r in solve(World(), "greedy", 5, seed=1)] == [
        r.text for r in solve(World(), "greedy", 5, seed=2)
    ]
    assert len({problem.id for problem in World(seed=3).problems(50)}) == 50


def test_a_sample_cut_by_the_limit_goes_on_where_it_stopped():
    found = solve(World(spread=0.0, p_step=0.99), "self_consistency", 50, samples=1, max_tokens=60)
    assert all(node.thought.finish == "length" for r in found for node in r.tree.level(1))
    assert all(r.cost.generated == 60 and r.answer is None for r in found)


@pytest.mark.parametrize("name", ["p_step", "auc", "confidence_auc"])
def test_a_chance_outside_of_zero_and_one_is_refused(name):
    with pytest.raises(ValueError, match=rf"world {name} must be in \(0, 1\), got 1.0"):
        World(**{name: 1.0})


# -- searches in it ------------------------------------------------------------------------------------------------
ONE_LURE = {"lure": 0.999, "spread": 1.0}
"""All wrong paths agree on one wrong answer, so that a vote without a verifier is worth nothing."""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mcts", {}),
        ("mcts", {"policy": "puct"}),
        ("mcts", {"rollouts": 1}),
        ("ab_mcts", {}),
        ("beam", {"max_depth": 5}),
        ("best_of_n", {}),
        ("dvts", {"max_depth": 5}),
        ("rebase", {"max_depth": 5}),
        ("tot", {"max_depth": 5}),
        ("tot", {"max_depth": 5, "order": "dfs", "solutions": 3}),
    ],
)
def test_search_beats_greedy_when_the_verifier_is_good(name, options):
    """AUC 0.9, 150 problems. A right implementation gains at least 25 points; to miss p < 1e-4 then takes a deviation
    of more than 4 standard errors: false alarm below 1e-4."""
    world = World(auc=0.9, **ONE_LURE)
    better, worse = turned(solve(world, "greedy", 150), solve(world, name, 150, **options))
    assert by_luck(better, worse) < 1e-4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mcts", {}),
        ("mcts", {"policy": "puct", "choose": "best"}),
        ("beam", {"max_depth": 5}),
        ("best_of_n", {}),
        ("dvts", {"max_depth": 5}),
        ("rebase", {"max_depth": 5}),
        ("tot", {"max_depth": 5}),
    ],
)
def test_search_does_not_beat_greedy_when_the_verifier_is_noise(name, options):
    """AUC 0.5, 300 problems: under "no gain" the exact one-sided test passes below 0.001 with at most that chance."""
    world = World(auc=0.5, **ONE_LURE)
    better, worse = turned(solve(world, "greedy", 300), solve(world, name, 300, **options))
    assert by_luck(better, worse) > 0.001
    assert better + worse > 50


def test_a_vote_beats_greedy_without_any_verifier_when_wrong_answers_differ():
    """Half of the gain of MCTS with noise is the vote's: here it shows, with wrong answers spread over nine."""
    world = World(auc=0.5, lure=0.1, spread=1.0)
    better, worse = turned(solve(world, "greedy", 300), solve(world, "self_consistency", 300, samples=16))
    assert by_luck(better, worse) < 1e-4


def test_a_better_verifier_is_worth_more_at_equal_tokens():
    found = [solve(World(auc=a, **ONE_LURE), "rebase", 200, merge=False, max_depth=5) for a in (0.55, 0.75, 0.95)]
    shares = [fmean(bool(result.correct) for result in results) for results in found]
    assert shares[0] + 0.1 < shares[1] and shares[1] + 0.1 < shares[2]


@pytest.mark.slow
def test_early_stopping_saves_half_of_the_samples_at_equal_answers():
    """2,000 problems, 40 samples as in the papers, a model that is right on about 87 %.

    Rule by rule at most 0.5 points apart. The exact rule differs from the full vote on about 3 in 1,000 problems, half
    of them either way, so 10 more on one side is a deviation of more than 4 standard errors: false alarm below 1e-4.
    """
    world, problems = World(p_step=0.9), 2000
    full = solve(world, "self_consistency", problems, samples=40, stop="none")
    early = solve(world, "self_consistency", problems, samples=40, wave=2)
    drawn = [sum(len(result.tree.asked) for result in results) for results in (full, early)]
    assert drawn[0] == 40 * problems
    assert drawn[1] <= 0.5 * drawn[0]
    better, worse = turned(full, early)
    assert abs(better - worse) < 0.005 * problems
    assert sum(result.unused["samples"] for result in early) == drawn[0] - drawn[1]


def test_the_window_rule_saves_samples_at_equal_answers_too():
    """400 problems: at most 2 points apart."""
    world = World(p_step=0.9)
    full, early = (
        solve(world, "self_consistency", 400, samples=40, **options)
        for options in ({"stop": "none"}, {"stop": "window", "window": 4, "wave": 4})
    )
    better, worse = turned(full, early)
    assert sum(len(result.tree.asked) for result in early) < 0.65 * 40 * 400
    assert abs(better - worse) <= 8


def test_votes_weighted_by_an_informative_confidence_are_no_worse():
    """Confidence of AUC 0.9 against none: a gain that 300 problems show; false alarm below 1e-3."""
    world = World(confidence_auc=0.9, lure=0.9)
    plain, weighted = (
        solve(world, "self_consistency", 300, samples=8, stop="none", vote=vote) for vote in ("majority", "confidence")
    )
    better, worse = turned(plain, weighted)
    assert by_luck(better, worse) < 1e-3


def test_theory_of_best_of_n_with_a_perfect_verifier():
    """With AUC near 1 best-of-n is right unless all n are wrong: 1 - (1 - p^4)^n for p = 0.7, n = 4."""
    found = solve(World(auc=1 - 1e-9, spread=0.0, p_step=0.7), "best_of_n", 600, samples=4)
    expected = 1 - (1 - 0.7**4) ** 4
    error = math.sqrt(expected * (1 - expected) / 600)
    assert abs(fmean(bool(result.correct) for result in found) - expected) < 6 * error
