"""Beam, DVTS, REBASE with ETS, and the variants of Tree of Thoughts, against trees computed by hand."""

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.clusters import cluster_key
from search.strategies import registry
from search.strategies.ets import Leaf, keep, objective
from search.strategies.rebase import apportion
from search.types import Sample, Sampling, Verdict
from search.verifiers.vote import VoteEvaluation


def asked(orders):
    return [(order.node_id, order.n) for order in orders]


def answer(value, score):
    return Sample(f"Answer: {value}", (1, 256), "eos", verdict=Verdict(score, "t"))


# -- beam ----------------------------------------------------------------------------------------------------------
def test_beam_keeps_n_over_m_of_the_level_and_grows_m_each(bench):
    b = bench("beam", n=6, m=3, max_depth=3)
    (order,) = b.ask()
    assert asked([order]) == [("r", 6)]
    b.tell(order, *((f"s{i} ", score) for i, score in enumerate([0.1, 0.9, 0.3, 0.8, 0.2, 0.8])))
    wave = b.ask()
    assert asked(wave) == [("r.1", 3), ("r.3", 3)]
    assert [node.status for node in b.tree.level(1)] == ["pruned", "expanding", "pruned", "expanding"] + ["pruned"] * 2
    assert b.tree.node("r.0").reason == "not among the best of its level (beam)"
    b.tell(wave[0], ("a ", 0.5), ("b ", 0.4), ("c ", 0.3))
    b.tell(wave[1], ("d ", 0.1), ("e ", 0.45), ("f ", 0.2))
    assert asked(b.ask()) == [("r.1.0", 3), ("r.3.1", 3)]


def test_case_10_a_finished_path_holds_its_place_in_the_beam_until_it_is_beaten(bench):
    b = bench("beam", n=4, m=2, max_depth=5)
    b.tell(b.ask()[0], answer(7, 0.8), ("a ", 0.5), ("b ", 0.4))
    (order,) = b.ask()
    assert order.node_id == "r.1"
    b.tell(order, ("c ", 0.9), ("d ", 0.85))
    assert asked(b.ask()) == [("r.1.0", 2), ("r.1.1", 2)]


def test_case_10_a_beam_full_of_finished_paths_ends_the_search(bench):
    b = bench("beam", n=2, m=1, max_depth=5)
    b.tell(b.ask()[0], answer(7, 0.8), answer(8, 0.9))
    assert b.ask() == []
    assert (b.strategy.answer(b.tree).answer, b.strategy.answer(b.tree).reason) == ("8", "done")


def test_a_path_that_ended_without_an_answer_takes_no_place_in_the_beam(bench):
    b = bench("beam", n=2, m=1)
    b.tell(b.ask()[0], Sample("I give up.", (1, 256), "eos", verdict=Verdict(0.9, "t")), ("a ", 0.1))
    assert asked(b.ask()) == [("r.1", 1)]


@pytest.mark.parametrize("name", ["beam", "dvts"])
def test_candidates_must_be_a_whole_number_of_beams(name):
    with pytest.raises(ValueError, match="option n must be a multiple of m, got n=6 and m=4"):
        registry.create(name, n=6, m=4)


# -- levels --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["beam", "dvts", "rebase", "tot"])
def test_the_tree_of_a_level_search_does_not_depend_on_the_capacity(bench, name):
    def grown(capacity):
        b = bench(name, capacity, **({"b": 4, "k": 3} if name == "tot" else {"n": 9 if name == "rebase" else 8}))
        while wave := b.ask():
            assert b.tree.in_flight <= max(capacity, 2) or b.strategy.compares == "wave"
            for order in wave:
                rng = random.Random(order.id)
                b.tell(order, *((f"{order.node_id} {i} ", rng.random()) for i in range(order.n)))
        return b.tree.to_json()

    trees = [grown(capacity) for capacity in (1, 3, 16)]
    assert len(trees[0]["nodes"]) > 20
    assert trees[0] == trees[1] == trees[2]


@pytest.mark.parametrize("capacity", [1, 3, 16])
def test_a_level_whose_scores_meet_within_a_wave_is_one_wave(bench, capacity):
    b = bench("tot", capacity, b=4, k=4, max_depth=3)
    b.tell(b.ask()[0], *((f"s{i} ", 0.5) for i in range(4)))
    wave = b.ask()
    assert asked(wave) == [(f"r.{i}", 4) for i in range(4)]
    assert b.ask() == []


@pytest.mark.parametrize("evaluate", ["value", "vote"])
def test_the_tree_of_a_search_by_votes_does_not_depend_on_the_capacity(lab, plain, evaluate):
    """Shares of a vote are of all that was judged at once."""
    options = {"b": 4, "k": 3, "max_depth": 4, "evaluate": evaluate}

    def tree(capacity):
        one = lab(SimulatedEngine(depth=4))
        verifier = VoteEvaluation(one.pool) if evaluate == "vote" else None
        return plain(one.solve("tot", verifier=verifier, options=options, capacity=capacity, seed=1))

    assert tree(1) == tree(2) == tree(16)


# -- dvts ----------------------------------------------------------------------------------------------------------
def test_dvts_keeps_the_best_of_each_subtree_however_poor(bench):
    b = bench("dvts", n=6, m=2, max_depth=3)
    wave = b.ask()
    assert [(order.node_id, order.first_sample, order.n) for order in wave] == [("r", 0, 2), ("r", 2, 2), ("r", 4, 2)]
    for order, scores in zip(wave, ([0.9, 0.8], [0.1, 0.2], [0.3, 0.3]), strict=True):
        b.tell(order, *((f"{order.first_sample + i} ", score) for i, score in enumerate(scores)))
    wave = b.ask()
    assert asked(wave) == [("r.0", 2), ("r.3", 2), ("r.4", 2)]
    b.tell(wave[0], ("a ", 0.1), ("b ", 0.0))
    b.tell(wave[1], answer(5, 0.9), ("c ", 0.8))
    b.tell(wave[2], answer(6, 0.1), ("d ", 0.2))
    assert asked(b.ask()) == [("r.0.0", 2), ("r.4.1", 2)]


def test_equal_first_steps_of_two_subtrees_stay_apart(bench):
    b = bench("dvts", n=4, m=2)
    for order in b.ask():
        b.tell(order, Sample("same ", (1,), "step", multiplicity=2, verdict=Verdict(0.5, "t")))
    assert asked(b.ask()) == [("r.0", 2), ("r.2", 2)]


# -- rebase --------------------------------------------------------------------------------------------------------
def test_rebase_shares_the_width_by_the_softmax_of_the_scores(bench):
    """exp(.9/.5), exp(.5/.5), exp(.1/.5) = 6.05, 2.72, 1.22: shares of 10 are 6.06, 2.72, 1.22."""
    weights = [math.exp(score / 0.5) for score in (0.9, 0.5, 0.1)]
    assert [10 * w / sum(weights) for w in weights] == pytest.approx([6.06, 2.72, 1.22], abs=0.01)
    b = bench("rebase", n=10, balance=0.5)
    b.tell(b.ask()[0], ("a ", 0.9), ("b ", 0.5), ("c ", 0.1))
    assert asked(b.ask()) == [("r.0", 6), ("r.1", 3), ("r.2", 1)]


def test_rebase_gives_finished_paths_their_place_and_prunes_who_gets_no_child(bench):
    b = bench("rebase", n=4, balance=0.1)
    b.tell(b.ask()[0], answer(5, 0.9), ("a ", 0.9), ("b ", 0.2), answer(6, 0.1))
    assert asked(b.ask()) == [("r.1", 2)]
    assert b.tree.node("r.2").status == "pruned"


def test_rebase_ends_when_finished_paths_fill_its_width(bench):
    b = bench("rebase", n=2)
    b.tell(b.ask()[0], answer(5, 0.2), answer(6, 0.1))
    assert b.ask() == []
    chosen = b.strategy.answer(b.tree)
    assert (chosen.answer, dict(chosen.votes)) == ("5", {"5": 0.2, "6": 0.1})


def test_rebase_without_any_score_shares_alike(bench):
    b = bench("rebase", n=4)
    b.tell(b.ask()[0], ("a ", None), ("b ", None))
    assert asked(b.ask()) == [("r.0", 2), ("r.1", 2)]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 40))
def test_seats_add_up_and_are_within_one_of_the_share(weights, seats):
    total = sum(weights) or 1.0
    shares = [w / total for w in weights] if sum(weights) else [1 / len(weights)] * len(weights)
    given_seats = apportion(shares, seats)
    assert sum(given_seats) == seats
    assert all(abs(n - share * seats) < 1 + 1e-6 for n, share in zip(given_seats, shares, strict=True))


# -- ets -----------------------------------------------------------------------------------------------------------
def leaf(name, weight, tokens, cluster="c", trunk=None):
    path = ((trunk, 50),) if trunk else ()
    return Leaf(name, weight, (*path, (name, tokens)), (cluster,))


def test_ets_drops_a_leaf_that_is_not_worth_its_kv():
    """KV of all: 50 + 10 + 10 + 130 = 200. c: .2 - 130/200 < 0; b shares a's trunk: .3 - 10/200 > 0."""
    leaves = [leaf("a", 0.5, 10, trunk="t"), leaf("b", 0.3, 10, trunk="t"), leaf("c", 0.2, 130)]
    assert [kept.id for kept in keep(leaves, 1.0, 0.0)] == ["a", "b"]
    assert [kept.id for kept in keep(leaves, 0.0, 0.0)] == ["a", "b", "c"]
    assert objective(leaves[:2], leaves, 1.0, 0.0) == pytest.approx(0.8 - 70 / 200)


def test_ets_keeps_a_leaf_of_its_own_cluster():
    """c costs .65 and is worth .2 + 1 x 1/2 of the clusters."""
    leaves = [leaf("a", 0.5, 10, trunk="t"), leaf("b", 0.3, 10, trunk="t"), leaf("c", 0.2, 130, cluster="other")]
    assert [kept.id for kept in keep(leaves, 1.0, 1.0)] == ["a", "b", "c"]


def test_ets_keeps_one_leaf_at_least_and_none_of_none():
    assert [kept.id for kept in keep([leaf("a", 0.5, 10), leaf("b", 0.5, 10)], 100.0, 0.0)] == ["a"]
    assert keep([], 1.0, 1.0) == []


def test_ets_finds_nearly_always_the_best_of_all_subsets():
    """200 random levels of 7 leaves in 3 subtrees and 4 clusters, against every subset."""
    optimal, rng = 0, random.Random(1)
    for _ in range(200):
        leaves = [
            leaf(str(i), rng.random() / 7, rng.randint(5, 60), f"c{rng.randrange(4)}", f"t{rng.randrange(3)}")
            for i in range(7)
        ]
        subsets = [s for n in range(1, 8) for s in itertools.combinations(leaves, n)]
        best = max(objective(subset, leaves, 1.0, 0.5) for subset in subsets)
        optimal += objective(keep(leaves, 1.0, 0.5), leaves, 1.0, 0.5) >= best - 1e-9
    assert optimal >= 190


def test_rebase_with_ets_shares_the_width_among_the_kept(bench):
    b = bench("rebase", n=4, ets=True, balance=1.0, lambda_b=1.5, lambda_d=0.0)
    long = Sample("x" * 300, tuple(range(300)), "step", verdict=Verdict(0.5, "t"))
    b.tell(b.ask()[0], ("add 2 and 3 to 5 ", 0.6), ("take 9 ", 0.5), long)
    assert asked(b.ask()) == [("r.0", 2), ("r.1", 2)]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("We add 2 and 3: 2 + 3 = 5.", "Adding 3 to 2 gives 2 + 3 = 5", True),
        ("2 + 3 = 5", "2 + 3 = 6", False),
        ("12, then 4", "4 and 12", True),
        ("Think again.", "think, AGAIN!", True),
        ("Think again.", "Stop.", False),
    ],
)
def test_steps_that_say_the_same_are_one_cluster(left, right, same):
    assert (cluster_key(left) == cluster_key(right)) is same


# -- tree of thoughts ----------------------------------------------------------------------------------------------
PROPOSING = {"generate": "propose", "k": 3, "b": 2, "max_depth": 1}


def test_tot_proposes_different_steps_in_one_reply(lab):
    reply = "1. Add the apples.\n\n2) Count the pears.\n- Guess.\n4. One too many."
    one = lab(ScriptedEngine([reply]))
    found = one.solve("tot", options=PROPOSING)
    assert [node.thought.text for node in found.tree.level(1)] == [
        "Add the apples.\n\n",
        "Count the pears.\n\n",
        "Guess.\n\n",
    ]
    assert (one.count("expansions"), found.cost.generated) == (1, len(reply) + 1)
    (order,) = found.tree.asked.values()
    assert (order.n, order.context) == (3, (found.tree.prompts[""],))
    assert all(node.score is not None for node in found.tree.level(1))


def test_a_proposal_keeps_the_sign_and_the_decimals_it_begins_with(lab):
    reply = "- -4 + 7 = 3\n-5 + 7 = 2\n3.5 * 2 = 7\n12:30 is the start\n2.\n2. 2.5 * 4 = 10\n(3) + 4 = 7\n(4) Go on"
    found = lab(ScriptedEngine([reply])).solve("tot", options={**PROPOSING, "k": 7})
    texts = [node.thought.text.strip() for node in found.tree.level(1)]
    assert texts == [
        "-4 + 7 = 3",
        "-5 + 7 = 2",
        "3.5 * 2 = 7",
        "12:30 is the start",
        "2.5 * 4 = 10",
        "(3) + 4 = 7",
        "Go on",
    ]


def test_the_request_for_proposals_is_the_users_next_turn(lab):
    seen = []
    one = lab(ScriptedEngine(lambda path, served: seen.append(path) or "Answer: 1"))
    one.solve("tot", options=PROPOSING)
    ((question,),) = seen
    assert question.startswith("\n<user>Do not go on yet. List 3 different possible next steps")
    assert question.endswith("\n<assistant>")


def test_case_76_proposals_at_temperature_zero_are_one_reply_and_all_kept(lab):
    one = lab(ScriptedEngine(["1. One way.\n2. Another way.\n3. A third.\n"]))
    found = one.solve("tot", options=PROPOSING, sampling=Sampling(temperature=0.0))
    assert (len(found.tree.level(1)), one.count("expansions"), found.warnings) == (3, 1, ())


def test_a_proposed_answer_ends_its_path(lab):
    found = lab(ScriptedEngine(["1. It is 4. Answer: 4\n2. Think more.\n"])).solve("tot", options=PROPOSING)
    assert (found.answer, found.complete) == ("4", True)
    assert [node.complete for node in found.tree.level(1)] == [True, False]


def test_a_proposal_cut_by_the_token_limit_is_none(lab):
    one = lab(ScriptedEngine(["1. Short.\n2. Rather long and cut in the middle of it all"]))
    found = one.solve("tot", options=PROPOSING, sampling=Sampling(max_tokens=10))
    assert [node.thought.text for node in found.tree.level(1)] == ["Short.\n\n"]
    assert found.cost.generated == 30


def test_proposals_never_spend_more_than_the_budget(lab):
    one = lab(ScriptedEngine(lambda path, served: "".join(f"{i}. A step of some length.\n" for i in range(3))))
    options = {**PROPOSING, "max_depth": 9}
    found = one.solve("tot", options=options, budget=Budget(tokens=500))
    assert 400 < found.cost.generated <= 500


def test_votes_of_different_waves_are_not_compared(bench):
    """A share of 0.9 in a wave of one says less than 0.4 in a wave of three; the answers are counted instead."""
    b = bench("tot", evaluate="vote", b=2, k=3, max_depth=2)
    b.tell(b.ask()[0], answer(5, 0.4), answer(5, 0.3), ("on ", 0.3))
    for order in b.ask():
        b.tell(order, answer(6, 0.9))
    chosen = b.strategy.answer(b.tree)
    assert (chosen.answer, dict(chosen.votes)) == ("5", {"5": 2.0})
