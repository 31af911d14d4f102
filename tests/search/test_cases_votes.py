"""Cases of self-consistency: when it stops, what counts as one vote, ties, and temperature 0."""

import pytest

from engine.base import Branch
from engine.scripted import ScriptedEngine
from search.samples import deduplicate
from search.strategies import registry
from search.types import Outcome, Problem, Sample, Sampling


def vote(lab, texts, *, kind="auto", samples=None, stop="none", **more):
    options = {"samples": samples or len(texts), "wave": 4, "stop": stop}
    one = lab(ScriptedEngine(texts))
    return one.solve("self_consistency", Problem("p?", kind=kind), options=options, **more), one


def test_case_28_agreement_stops_by_the_fourth_sample(lab):
    found, one = vote(lab, ["Answer: 5"], samples=16, stop="beta")
    assert one.count("expansions") == 4
    assert (found.answer, found.stop_reason) == ("5", "agreed")
    assert found.unused == {"samples": 12}
    assert found.votes == {"5": 4.0}


def test_case_28_an_even_split_uses_all_samples(lab):
    found, one = vote(lab, ["Answer: 5", "Answer: 6"], samples=16, stop="beta")
    assert one.count("expansions") == 16
    assert (found.stop_reason, found.unused, found.votes) == ("done", {"samples": 0}, {"5": 8.0, "6": 8.0})


@pytest.mark.parametrize("stop", ["beta", "window"])
def test_a_vote_by_confidence_stops_on_the_answer_it_returns(lab, stop):
    """One sure sample says 2, the unsure ones 1: the count is decided long before ten of them outweigh it."""
    sure, unsure = Branch((65,), "Answer: 2", "eos", -1.0, 0.95), Branch((65,), "Answer: 1", "eos", -1.0, 0.1)
    one = lab(ScriptedEngine(lambda path, served: unsure if served else sure))
    options = {"samples": 32, "wave": 1, "stop": stop, "vote": "confidence", "window": 2}
    found = one.solve("self_consistency", options=options)
    assert (found.answer, found.stop_reason, one.count("expansions")) == ("1", "agreed", 11)


def test_a_window_ends_a_vote_only_if_its_answer_leads(lab):
    one = lab(ScriptedEngine([f"Answer: {n}" for n in (1, 2, 1, 2, 1, 2, 3, 3, 1, 1)]))
    found = one.solve("self_consistency", options={"samples": 16, "wave": 2, "stop": "window", "window": 2})
    assert (found.answer, found.stop_reason, one.count("expansions")) == ("1", "agreed", 10)


def test_case_39_percent_is_not_a_bare_number(lab):
    found, _ = vote(lab, ["Answer: 28\\%", "Answer: 28", "Answer: 28", "Answer: 28", "Answer: 0.28"])
    assert (found.answer, found.votes) == ("28", {"28": 3.0, "28\\%": 2.0})


def test_case_40_one_dissenter_in_nearly_the_same_text_loses(lab):
    texts = [f"We add 7 and {n} and get {7 + n}. The answer is {7 + n}." for n in (8, 5, 5, 5, 5)]
    found, _ = vote(lab, texts)
    assert (found.answer, found.votes) == ("12", {"12": 4.0, "15": 1.0})
    assert found.node_id == "r.1" and found.text == texts[1]


def test_case_41_spellings_of_one_answer_are_one_vote_and_the_last_statement_counts(lab):
    texts = ["Answer: $1,000", "Answer: 1000", r"so \boxed{1000}", r"so \boxed{1{,}000}", "Answer: 7. No. Answer: 1e3"]
    found, _ = vote(lab, texts)
    assert list(found.votes.values()) == [5.0]
    halves, _ = vote(lab, ["Answer: 3/4", "Answer: 0.75", r"so $\boxed{\frac34}$"])
    assert list(halves.votes.values()) == [3.0]


def test_answers_that_are_words_are_one_vote_only_where_the_words_are_the_same(lab):
    """Of the game of 24 all right answers have one value, and wrong ones may claim it."""
    texts = ["Answer: 1 + 2 = 24", "Answer: 4 * 6", "Answer: (4 + 8) * (6 - 4)", "Answer: 4 * 6"]
    found, _ = vote(lab, texts, kind="text")
    assert (found.answer, found.votes) == ("4 * 6", {"4 * 6": 2.0, "1 + 2 = 24": 1.0, "(4 + 8) * (6 - 4)": 1.0})


def test_the_answer_is_what_the_chosen_path_states(lab):
    one = lab(ScriptedEngine(["Answer: 1000", "Answer: $1,000"]))
    found = one.solve(
        "best_of_n", verifier=lambda p, text: 0.9 if "$" in text else 0.5, options={"samples": 2, "choose": "vote"}
    )
    assert (found.answer, found.node_id, list(found.votes.values())) == ("$1,000", "r.1", [pytest.approx(1.4)])


@pytest.mark.parametrize("finishes", [("step", "eos"), ("eos", "step"), ("length", "eos"), ("length", "step")])
def test_of_equal_samples_the_one_that_came_furthest_stands_for_all(finishes):
    samples = tuple(Sample("So 24.", (index,), finish, index) for index, finish in enumerate(finishes))
    (kept,) = deduplicate(Outcome("e", "p", "r", samples)).samples
    assert (kept.finish, kept.multiplicity) == (max(finishes, key=["length", "step", "eos"].index), 2)


def test_case_42_replies_without_an_answer_do_not_vote(lab):
    found, _ = vote(lab, ["I cannot tell.", "No idea at all.", "Hard to say.", "Answer: 7", "Answer: 7"])
    assert (found.answer, found.complete, found.votes) == ("7", True, {"7": 2.0})


def test_case_42_nobody_answers(lab):
    found, _ = vote(lab, ["I cannot tell.", "No idea at all."])
    assert (found.answer, found.complete, found.stop_reason, found.votes) == (None, False, "no_answer", {})


@pytest.mark.parametrize("step", [1, -1])
def test_case_42_ties_break_by_sample_not_by_arrival(bench, step):
    b = bench("self_consistency", samples=4, wave=4, stop="none")
    for order in b.ask()[::step]:
        b.tell(order, Sample(f"Answer: {order.first_sample % 2}", (1,), "eos"))
    chosen = b.strategy.answer(b.tree)
    assert (chosen.answer, chosen.node_id) == ("0", "r.0")


def test_a_sample_cut_by_length_states_no_answer(lab):
    one = lab(ScriptedEngine(["The answer is 1234567890", "Answer: 7"]))
    options = {"samples": 4, "max_tokens": 20, "stop": "none"}
    found = one.solve("self_consistency", options=options)
    assert [node.thought.text for node in found.tree.nodes()][1::2] == ["The answer is 123456"] * 2
    assert (found.answer, found.votes) == ("7", {"7": 2.0})
    cut = lab(ScriptedEngine(["The answer is 1234567890"])).solve("self_consistency", options=options)
    assert (cut.answer, cut.complete, cut.stop_reason) == (None, False, "no_answer")


def test_a_step_boundary_does_not_cut_a_whole_sample(lab):
    found, one = vote(lab, ["First.\n\nSecond.\n\nAnswer: 3"])
    assert found.text == "First.\n\nSecond.\n\nAnswer: 3"
    assert one.count("expansions") == 1


def test_case_76_temperature_zero_draws_one_sample_and_warns(lab):
    found, one = vote(lab, ["Answer: 3"], samples=5, sampling=Sampling(temperature=0.0))
    assert one.count("expansions") == 1 and len(one.engines[0].prompts) == 1
    assert found.answer == "3"
    assert found.warnings == ("temperature 0: 5 samples would be equal, drawing one",)


def test_case_76_temperature_zero_draws_one_sample_a_hint(lab):
    one = lab(ScriptedEngine(["Answer: 3"]))
    options = {"samples": 5, "hints": ["a", "b"], "stop": "none"}
    found = one.solve("self_consistency", sampling=Sampling(temperature=0.0), options=options)
    assert len(set(one.engines[0].prompts)) == len(one.engines[0].prompts) == 2
    assert found.votes == {"3": 2.0} and len(found.warnings) == 2


@pytest.mark.parametrize("name", ["tot", "mcts"])
def test_case_76_step_searches_at_temperature_zero(lab, name):
    one = lab(ScriptedEngine(["on.\n\n"]))
    found = one.solve(name, sampling=Sampling(temperature=0.0), options={"k": 3, "max_depth": 2})
    assert [node.id for node in found.tree.nodes()] == ["r", "r.0", "r.0.0"]
    assert found.warnings == ("temperature 0: 3 samples would be equal, drawing one",)


def test_hints_are_dealt_in_turn_and_freed(lab):
    one = lab(ScriptedEngine(["Answer: 3", "Answer: 4"]))
    found = one.solve("self_consistency", options={"samples": 4, "hints": ["a", "b"], "stop": "none"})
    assert [node.hint for node in found.tree.nodes()][1:] == ["a", "b", "a", "b"]
    prompts = one.engines[0].prompts
    shared = max(i for i in range(len(prompts[0])) if prompts[1].startswith(prompts[0][:i]))
    assert one.engines[0].tree.num_tokens <= shared


def test_options_are_checked():
    for options in ({"samples": 0}, {"wave": 0}, {"stop_at": 0.5}, {"stop_at": 1.1}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match="option"):
            registry.create("self_consistency", **options)


def test_a_branch_may_be_given_whole(lab):
    found, _ = vote(lab, [Branch((65,), "Answer: 9", "stop")])
    assert (found.answer, found.complete) == ("9", True)
