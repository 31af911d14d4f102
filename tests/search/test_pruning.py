"""Pruning by confidence (DeepConf, online): a floor from the warm-up, samples that end early, votes that count."""

import asyncio

import pytest

from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.checkers.grade import grade
from search.driver import TreeSearch
from search.simulated import SimulatedPool
from search.strategies import registry
from search.strategies.selection import answer_of
from search.types import CUT, PruneRule, Sample
from search.world import World

PRUNED = {"samples": 12, "wave": 4, "stop": "none", "prune": 0.5, "warmup": 4, "group": 8}


def told(b, *samples):
    """Answer the next orders: (answer, lowest group confidence) each; the rules they were drawn by."""
    orders = b.ask()
    assert len(orders) == len(samples)
    for order, (answer, lowest) in zip(orders, samples, strict=True):
        floor = order.sampling.prune.floor
        finish = "pruned" if floor is not None and lowest is not None and lowest < floor else "eos"
        b.tell(order, Sample(f"Answer: {answer}", (1, 2), finish, lowest=lowest))
    return [order.sampling.prune for order in orders]


@pytest.mark.parametrize(("prune", "floor"), [(0.25, 1.75), (0.5, 2.5), (0.9, 3.7), (1.0, 4.0), (0.1, 1.3)])
def test_the_floor_is_the_percentile_of_the_warm_up(bench, prune, floor):
    """As numpy.percentile([4, 1, 3, 2], 100 * prune)."""
    b = bench("self_consistency", **{**PRUNED, "prune": prune})
    assert told(b, ("1", 4.0), ("1", 1.0), ("1", 3.0), ("1", 2.0)) == [PruneRule(8, None)] * 4
    later = told(b, ("1", 9.0), ("1", 9.0), ("1", 9.0), ("1", 0.0))
    assert len(set(later)) == 1 and later[0].floor == pytest.approx(floor)
    assert told(b, *[("1", 9.0)] * 4) == later


def test_the_warm_up_ends_at_its_own_wave(bench):
    b = bench("self_consistency", **{**PRUNED, "warmup": 6})
    assert [len(told(b, *[("1", 1.0)] * n)) for n in (4, 2, 4, 2)] == [4, 2, 4, 2]
    assert b.ask() == []


def test_samples_below_the_floor_have_no_vote_those_of_the_warm_up_either(bench):
    b = bench("self_consistency", **{**PRUNED, "samples": 8})
    told(b, ("7", 1.0), ("7", 1.1), ("8", 3.0), ("8", 3.1))
    told(b, ("7", 0.1), ("7", 0.2), ("7", 0.3), ("9", 5.0))
    found = b.strategy.answer(b.tree)
    assert (found.answer, dict(found.votes)) == ("8", {"8": 2.0, "9": 1.0})
    statuses = [node.status for node in b.tree.children(b.tree.root)]
    assert statuses == ["terminal"] * 4 + ["pruned"] * 3 + ["terminal"]
    assert [node.id for node in b.tree.pruned] == ["r.4", "r.5", "r.6"]


def test_without_any_confidence_nothing_is_pruned(bench):
    b = bench("self_consistency", **{**PRUNED, "samples": 8})
    told(b, *[("1", None)] * 4)
    assert told(b, *[("2", None)] * 4) == [PruneRule(8, None)] * 4
    assert dict(b.strategy.answer(b.tree).votes) == {"1": 4.0, "2": 4.0}


def test_a_search_whose_later_samples_are_all_pruned_answers_with_the_warm_up(bench):
    b = bench("self_consistency", **{**PRUNED, "samples": 8, "prune": 1.0})
    told(b, ("1", 1.0), ("2", 2.0), ("1", 1.0), ("1", 1.0))
    told(b, *[("1", 0.5)] * 4)
    assert b.strategy.answer(b.tree).answer == "2"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prune": 1.5}, ["option prune", "[0, 1]", "1.5"]),
        ({"prune": 0.5, "warmup": 0}, ["option warmup", ">= 1"]),
        ({"prune": 0.5, "group": 0}, ["option group", ">= 1"]),
        ({"prune": 0.5, "samples": 4, "warmup": 4}, ["option warmup", "samples=4"]),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(ValueError) as raised:
        registry.create("self_consistency", **options)
    for word in words:
        assert word in str(raised.value)


def test_an_engine_that_cannot_prune_is_refused_with_what_to_do(lab):
    one = lab(ScriptedEngine(["Answer: 5"], capabilities=frozenset({"confidence"})))
    with pytest.raises(ValueError, match=r"needs prune.*it gives: confidence.*use prune=0"):
        one.solve("self_consistency", options=PRUNED)
    assert one.solve("self_consistency", options={"samples": 2}).answer == "5"


# -- on engines ----------------------------------------------------------------------------------------------------
def solved(lab, engines, options=PRUNED, depth=9):
    one = lab(*(SimulatedEngine(depth=depth) for _ in range(engines)))
    return one, one.solve("self_consistency", options=options, seed=3)


def test_the_simulated_engine_ends_rows_early_and_says_what_that_saved(lab, plain):
    _, found = solved(lab, 1)
    _, whole = solved(lab, 1, {**PRUNED, "prune": 0.0})
    pruned = [node for node in found.tree.nodes() if node.thought.finish == "pruned"]
    assert pruned and all(node.index >= 4 and node.status == "pruned" for node in pruned)
    assert found.cost.saved == sum(256 - len(node.thought.token_ids) for node in pruned)
    assert found.cost.generated < whole.cost.generated and whole.cost.saved == 0
    uncut = {node.id: node.thought.text for node in whole.tree.nodes()}
    for node in found.tree.nodes():
        text = node.thought.text
        assert uncut[node.id].startswith(text) and (node.thought.finish in CUT or uncut[node.id] == text)
    assert found.stop_reason == "done" and found.answer is not None


def test_the_same_seed_gives_the_same_tree_on_any_number_of_engines(lab, plain):
    trees = [plain(solved(lab, engines)[1]) for engines in (1, 2, 4)]
    assert trees[0] == trees[1] == trees[2]
    assert any(node["status"] == "pruned" for node in trees[0])


def test_the_estimate_bounds_a_pruned_search(lab):
    _, found = solved(lab, 2)
    most = registry.create("self_consistency", **PRUNED).ceiling(found.tree.sampling)
    assert found.cost.generated <= most.tokens and len(found.tree.asked) <= most.expansions


def test_in_the_simulated_world_pruning_drops_wrong_samples_rather_than_right_ones():
    """150 problems, confidence of AUC 0.85: samples that were pruned would have been right less often than others."""
    world = World(seed=5, depth=3, p_step=0.75, confidence_auc=0.85)
    pruned, whole = (
        [asyncio.run(search.run(problem)) for problem in world.problems(150)]
        for search in (
            TreeSearch(SimulatedPool(world), registry.create("self_consistency", **options), seed=1)
            for options in (PRUNED, {**PRUNED, "prune": 0.0})
        )
    )
    right = {True: [], False: []}
    for cut, full in zip(pruned, whole, strict=True):
        for node in cut.tree.children(cut.tree.root):
            answer = answer_of(full.tree, full.tree.node(node.id))
            if node.index >= PRUNED["warmup"]:
                right[node.status == "pruned"].append(grade(full.problem, answer))
    dropped, kept = (sum(right[gone]) / len(right[gone]) for gone in (True, False))
    assert kept - dropped > 0.15
    assert sum(r.cost.generated for r in pruned) < 0.95 * sum(r.cost.generated for r in whole)
