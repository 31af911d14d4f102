"""ASKS tier `merged`: siblings that say the same become one node, visits and votes pooled, one copy of KV."""

from dataclasses import replace

import pytest

from engine.scripted import ScriptedEngine
from search.prompts import ChatPrompt
from search.states import merge_siblings, state_of
from search.tree import SearchTree
from search.types import Outcome, Problem, Sample, Sampling

WAYS = ["So 6 * 7 = 42 rolls.\n\n", "We get 6*7=42, all in all.\n\n", "Hence 6 + 7 = 13.\n\n"]


def state(text: str, finish="step", complete=False, before=""):
    return state_of(before, Sample(text, (), finish), complete, "auto")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("So 6 * 7 = 42 rolls.\n\n", "We get 6×7=42.\n\n", True),
        ("He pays 3 x $1,200 = $3,600.", "3*1200=3600 it is.", True),
        ("First 2 + 2 = 4, then 4 * 3 = 12.", "4 * 3 = 12 since 2 + 2 = 4.", False),
        ("6 * 7 = 42", "7 * 6 = 42", False),
        ("6 * 7 = 42", "6 * 7 = 43", False),
        ("6 * 7 = 42 for 2 boxes", "6 * 7 = 42 for 3 boxes", False),
    ],
)
def test_a_step_is_its_numbers_and_its_last_equation(a, b, same):
    assert state(a) is not None and state(b) is not None
    assert (state(a) == state(b)) is same


@pytest.mark.parametrize("text", ["Let us count the rolls.", "There are 6 trays of 7.", ""])
def test_a_step_without_an_equation_has_no_state(text):
    assert state(text) is None


def test_finished_paths_of_the_kind_exact_are_their_text():
    states = [state_of("", Sample(rf"\boxed{{{text}}}", (), "stop"), True, "exact") for text in ("AB", "ab", "AB")]
    assert states[0] != states[1] and states[0] == states[2]


def test_a_cut_step_has_no_state_and_thinking_does_not_count():
    assert state("6 * 7 = 42", finish="length") is None
    assert state("<think>1 + 1 = 2</think>6 * 7 = 42") == state("6 * 7 = 42")
    assert state("6 * 7 = 42", before="<think>") is None


def test_a_finished_path_is_its_answer():
    assert state("Answer: 42.00", "eos", True) == state("So we know it. The answer is 42", "eos", True)
    assert state("Answer: 42", "eos", True) != state("Answer: 43", "eos", True)
    assert state("6 * 7 = 42") != state("Answer: 42", "eos", True)


def ways(path, served):
    return WAYS[served % 3] if not path else f"Answer: {42 if '42' in path[0] else 13}"


@pytest.mark.parametrize(("merge", "expected"), [(None, [2, 1]), (True, [2, 1]), (False, [1, 1, 1])])
def test_equal_siblings_pool_their_multiplicity(lab, merge, expected):
    one = lab(ScriptedEngine(ways))
    found = one.solve("tot", options={"k": 3, "b": 3, "max_depth": 2}, merge=merge)
    nodes = [node for node in found.tree.nodes() if node.depth == 1]
    assert [node.multiplicity for node in nodes] == expected
    assert nodes[0].thought.text == WAYS[0]
    assert found.complete


def test_visits_and_votes_are_pooled(lab):
    one = lab(ScriptedEngine(ways))
    options = {"k": 3, "max_depth": 1, "simulations": 1}
    found = one.solve("mcts", options=options)
    assert found.tree.root.visits == 3
    assert [node.visits for node in found.tree.nodes() if node.depth == 1] == [2, 1]


def test_merged_siblings_leave_one_copy_of_kv(lab):
    held = {}
    for merge in (True, False):
        one = lab(ScriptedEngine(ways))
        search = one.search("tot", options={"k": 3, "max_depth": 1}, merge=merge)
        sizes = []
        search.on_event = lambda event, e=one.engines[0], s=sizes: s.append(e.tree.num_tokens)
        import asyncio

        asyncio.run(search.run(Problem("What is 6 * 7?")))
        held[merge] = max(sizes)
        one.check()
    assert held[True] < held[False]


def test_counting_strategies_keep_every_sample(lab):
    texts = ["The answer is 42", "So we get it. The answer is 42", "Well. The answer is 42", "The answer is 41"]
    one = lab(ScriptedEngine(lambda path, served: texts[served]))
    found = one.solve("self_consistency", options={"samples": 4, "wave": 4, "stop_at": 1.0})
    assert len(found.tree.complete()) == 4
    assert found.votes == {"42": 3.0, "41": 1.0}


def test_the_path_of_a_twin_is_kept_where_another_order_grew_the_same_text():
    """B2 says what A2 says and goes into it; its tokens are B1's path, which the first order brought."""
    tree = SearchTree(Problem("p", "p"), {"": (1,)}, Sampling())
    first, second = (tree.expansion(tree.root, 2) for _ in range(2))
    b = Sample("We get 6*7=42.\n\n", (7, 8, 9), "step", 0)
    a = Sample("So 6 * 7 = 42\n\n", (4, 5, 6), "step", 2)
    outcomes = [Outcome(first.id, "p", "r", (b,)), Outcome(second.id, "p", "r", (a, replace(b, index=3)))]
    kept, freed = merge_siblings(tree, outcomes)
    assert [[s.multiplicity for s in outcome.samples] for outcome in kept] == [[1], [2]] and freed == []
    tree.grow(kept[0])
    assert merge_siblings(tree, outcomes[1:])[1] == []
    assert merge_siblings(tree, [replace(outcomes[1], samples=(a, replace(b, token_ids=(7, 8, 1, 2))))])[1] != []


def test_the_merge_is_told_in_the_wave_event(lab):
    events = []
    lab(ScriptedEngine(ways)).solve("tot", options={"k": 3, "max_depth": 1}, on_event=events.append)
    assert [event.data["merged"] for event in events if event.kind == "wave"] == [1]


def test_layout_puts_what_varies_last():
    problem = Problem("How many rolls?")
    last = [ChatPrompt().messages(problem, hint)[-1]["content"] for hint in ("be short", "be exact")]
    first = [ChatPrompt(hint_last=False).messages(problem, hint)[-1]["content"] for hint in ("be short", "be exact")]
    assert all(text.startswith("How many rolls?") for text in last)
    assert [text.split("\n\n")[0] for text in first] == ["be short", "be exact"]
    assert [text.split("\n\n")[-1] for text in last] == ["be short", "be exact"]
