"""Cases of step search: finished beams, limits, cut steps, blank and equal proposals, ends at once."""

import pytest

from engine.base import Branch
from engine.scripted import ScriptedEngine
from search.strategies import registry
from search.types import Boundary, Sample, Sampling, Verdict

ALL = registry.names()
EOS = 256


def step(path, served):
    return f"Thought {'abcdefghij'[served]} at level {'abcdefghijklmnop'[len(path)]}.\n\n"


def test_case_08_every_sample_blank_at_the_root(lab, blanks):
    for blank in blanks:
        for name in ALL:
            found = lab(ScriptedEngine(lambda path, served, blank=blank: blank)).solve(name)
            assert found.stop_reason == "no_answer", (name, blank)
            assert (found.answer, found.complete, found.error, found.text) == (None, False, None, "")
            assert len(found.tree) == 1
            assert found.tree.root.status == "dead"
            assert found.tree.root.reason == "blank: every sample was empty"


@pytest.fixture
def blanks():
    white = " \n\n\t "
    return ["", white, Branch((EOS,), "", "eos"), Branch(tuple(white.encode()), white, "step")]


@pytest.mark.parametrize("name", ["greedy", "mcts", "tot"])
@pytest.mark.parametrize("blank", ["step", "length"])
def test_case_08_every_sample_blank_at_depth_two(lab, name, blank):
    def script(path, served):
        return step(path, served) if len(path) < 2 else Branch((32,), " ", blank)

    found = lab(ScriptedEngine(script)).solve(name)
    deep = [node for node in found.tree.nodes() if node.depth == 2 and node.status != "pruned"]
    assert deep and all(node.status in ("dead", "open") for node in deep)
    dead = [node for node in deep if node.status == "dead"]
    assert dead and all(node.reason == "blank: every sample was empty" for node in dead)
    assert (found.stop_reason, found.answer, found.complete, found.error) == ("no_answer", None, False, None)


@pytest.mark.parametrize("name", ["greedy", "mcts", "tot"])
def test_case_08_only_a_stop_token_at_depth_two_ends_the_path(lab, name):
    def script(path, served):
        return step(path, served) if len(path) < 2 else ""

    one = lab(ScriptedEngine(script))
    found = one.solve(name)
    ended = [node for node in found.tree.nodes() if node.status == "terminal"]
    assert ended and all((node.depth, node.reason, node.complete) == (2, "ended", True) for node in ended)
    assert not any(node.depth == 3 for node in found.tree.nodes())
    assert (found.stop_reason, found.answer, found.complete) == ("no_answer", None, False)
    asked = [order.node_id for order in found.tree.asked.values()]
    assert len(asked) == len(set(asked))


def test_case_08_a_blank_branch_does_not_stop_its_mates(lab):
    def script(path, served):
        if not path:
            return ["dead end.\n\n", "good way.\n\n"][served % 2]
        return Branch((10,), "\n", "step") if path[0].startswith("dead") else "Answer: 5"

    found = lab(ScriptedEngine(script)).solve("tot", options={"b": 2, "k": 2})
    assert (found.answer, found.complete) == ("5", True)
    assert found.tree.node("r.0").status == "dead"


def test_case_10_a_beam_that_finishes_at_depth_two_of_four_with_the_top_score_is_the_answer(lab):
    def script(path, served):
        if len(path) == 1 and served == 0 and path[0].startswith("Thought a"):
            return "Answer: 7"
        return "Answer: 9" if len(path) == 3 else step(path, served)

    found = lab(ScriptedEngine(script)).solve(
        "tot", verifier=lambda p, t: 0.95 if "7" in t else 0.5, options={"b": 3, "k": 3, "max_depth": 4}
    )
    assert {node.depth for node in found.tree.complete()} == {2, 4}
    assert (found.answer, found.complete, found.tree.node(found.node_id).depth) == ("7", True, 2)


def test_a_finished_path_keeps_its_place_in_the_beam(lab):
    def script(path, served):
        return "Answer: 7" if served == 0 and not path else step(path, served)

    found = lab(ScriptedEngine(script)).solve(
        "tot", verifier=lambda p, t: 0.9 if "7" in t else 0.5, options={"b": 1, "k": 3, "max_depth": 4}
    )
    assert found.answer == "7"
    assert len(found.tree.asked) == 1


@pytest.mark.parametrize(
    ("name", "reason"), [("tot", "depth"), ("mcts", "exhausted"), ("greedy", "depth"), ("dfs", "depth")]
)
def test_case_11_depth_limit_everywhere_gives_the_best_partial(lab, name, reason):
    options = {"max_depth": 2}
    if name != "greedy":
        options["k"] = 2
    if name == "dfs":
        name, options["order"] = "tot", "dfs"
    found = lab(ScriptedEngine(step)).solve(
        name, verifier=lambda p, t: 0.9 if t.count("Thought b") == 2 else 0.3, options=options
    )
    assert (found.complete, found.answer, found.stop_reason) == (False, None, reason)
    assert found.text.count("Thought") == 2
    if name != "greedy":
        assert found.text.count("Thought b") == 2


def test_case_11_a_partial_path_says_what_it_states_so_far(lab):
    found = lab(ScriptedEngine(lambda path, served: "so 3 + 4 = 7\n\nmore")).solve("greedy", options={"max_depth": 2})
    assert (found.answer, found.complete, found.stop_reason) == ("7", False, "depth")


def test_best_partial_prefers_what_can_go_on_to_what_ended_without_an_answer(bench):
    b = bench("tot", k=2, b=2, max_depth=2)
    ended = Sample("I give up.", (1, EOS), "eos", verdict=Verdict(0.9, "t"))
    b.tell(b.ask()[0], ended, ("there are 5 apples\n\n", 0.2))
    chosen = b.strategy.answer(b.tree)
    assert (chosen.answer, chosen.node_id, chosen.complete) == ("5 apples", "r.1", False)


@pytest.mark.parametrize("step", [1, -1])
def test_best_partial_does_not_depend_on_arrival(bench, step):
    b = bench("self_consistency", wave=3)
    for order in b.ask()[::step]:
        b.tell(order, Sample(f"cut {order.first_sample}", (1,), "length"))
    assert [node.id for node in b.tree.nodes()][1:] == ["r.0", "r.1", "r.2"][::step]
    assert b.strategy.answer(b.tree).node_id == "r.0"


def test_case_12_the_long_good_path_beats_the_short_poor_one(lab):
    def script(path, served):
        if not path:
            return ["Answer: 1", "careful.\n\n"][served % 2]
        return "Answer: 2" if len(path) == 3 else step(path, served)

    for name in ("tot", "mcts"):
        found = lab(ScriptedEngine(script)).solve(
            name, verifier=lambda p, t: 0.1 if "Answer: 1" in t else 0.9, options={"k": 2, "max_depth": 4}
        )
        assert {node.depth for node in found.tree.complete()} >= {1, 4}, name
        assert (found.answer, found.complete) == ("2", True), name


@pytest.mark.parametrize("name", ["greedy", "tot", "mcts"])
def test_case_13_a_step_cut_by_length_is_continued_and_never_an_answer(lab, name):
    whole = "The answer is 123456"

    def script(path, served):
        return whole[len("".join(path)) :]

    found = lab(ScriptedEngine(script)).solve(name, sampling=Sampling(max_tokens=16))
    first = found.tree.node("r.0")
    assert first.thought.text == "The answer is 12" and first.thought.finish == "length"
    assert first.complete is False
    assert (found.answer, found.complete, found.text) == ("123456", True, whole)


def test_case_13_what_only_cut_steps_state_is_no_answer(lab):
    one = lab(ScriptedEngine(lambda path, served: "The answer is 123456"[len("".join(path)) :]))
    found = one.solve("greedy", sampling=Sampling(max_tokens=9), options={"max_depth": 2})
    assert found.text == "The answer is 1234"
    assert (found.answer, found.complete, found.stop_reason) == (None, False, "depth")


@pytest.mark.parametrize("name", ["tot", "mcts"])
def test_case_16_equal_proposals_are_one_node_and_blank_ones_none(lab, name):
    def script(path, served):
        return ["good\n\n", " good \n\n", ""][served] if not path else "Answer: 3"

    one = lab(ScriptedEngine(script))
    found = one.solve(name, options={"k": 3, "max_depth": 2} | ({"simulations": 2} if name == "mcts" else {}))
    nodes = [node for node in found.tree.nodes() if node.depth == 1]
    assert [(node.id, node.multiplicity, node.thought.text) for node in nodes] == [("r.0", 2, "good\n\n")]
    leaf = found.tree.node("r.0.0")
    assert (leaf.multiplicity, found.answer) == (3, "3")
    if name == "mcts":
        assert found.tree.root.visits == 5


def test_hints_that_are_dealt_twice_draw_equal_proposals_as_one_node(lab):
    one = lab(ScriptedEngine(lambda path, served: f"as {one.engines[0].prompts[-1][-25:-13]}\n\n"))
    found = one.solve("tot", options={"k": 4, "hints": ["be short", "be exact"], "max_depth": 1})
    assert [(n.id, n.hint, n.multiplicity) for n in found.tree.nodes() if n.depth] == [
        ("r.0", "be short", 2),
        ("r.2", "be exact", 2),
    ]
    assert len(one.engines[0].prompts) == 4 and len(set(one.engines[0].prompts)) == 2
    assert one.engines[0].tree.num_tokens < len("".join(set(one.engines[0].prompts)))


@pytest.mark.parametrize("name", ["greedy", "tot", "mcts", "self_consistency"])
def test_case_20_an_answer_with_eos_at_once_is_terminal_and_never_expanded(lab, name):
    one = lab(ScriptedEngine(lambda path, served: "Answer: 8" if not path else pytest.fail("expanded again")))
    found = one.solve(name)
    assert (found.answer, found.complete) == ("8", True)
    assert all(node.status == "terminal" for node in found.tree.nodes() if node.depth)
    assert {order.node_id for order in found.tree.asked.values()} == {"r"}


def test_case_20_eos_behind_a_step_finishes_that_step(lab):
    one = lab(ScriptedEngine(lambda path, served: "" if path else "It is 12 apples.\n\n"))
    found = one.solve("tot", options={"k": 2})
    node = found.tree.node("r.0")
    assert (node.status, node.complete, node.reason) == ("terminal", True, "ended")
    assert (found.answer, found.complete) == ("12 apples", True)
    assert one.count("expansions") == 2


def test_depth_first_goes_down_the_best_child_and_backtracks(lab):
    """Scores: a .9, b .5; below a everything is a dead end, so b is tried; c (.1) is given up."""
    scores = {"a.\n\n": 0.9, "b.\n\n": 0.5, "c.\n\n": 0.1}

    def script(path, served):
        if not path:
            return ["a.\n\n", "b.\n\n", "c.\n\n"][served]
        return Branch((10,), "\n", "step") if path[0].startswith("a") else "Answer: 4"

    one = lab(ScriptedEngine(script))
    found = one.solve(
        "tot",
        verifier=lambda p, t: scores.get(t, 0.6),
        options={"order": "dfs", "k": 3, "prune_below": 0.2, "max_depth": 3},
    )
    assert [order.node_id for order in found.tree.asked.values()] == ["r", "r.0", "r.1"]
    assert (found.answer, found.tree.node("r.2").status) == ("4", "pruned")
    assert found.tree.node("r.2").reason == "score below 0.2"


def test_depth_first_goes_on_behind_a_finished_path_without_an_answer(bench):
    b = bench("tot", order="dfs", k=2)
    ended = Sample("I give up.", (1, EOS), "eos", verdict=Verdict(0.9, "t"))
    b.tell(b.ask()[0], ended, ("go on\n\n", 0.5))
    (order,) = b.ask()
    assert order.node_id == "r.1"
    b.tell(order, Sample("Answer: 2", (1, EOS), "eos", verdict=Verdict(0.1, "t")))
    assert b.ask() == []
    assert b.strategy.answer(b.tree).answer == "2"


def test_depth_first_stops_after_the_solutions_asked_for(lab):
    def script(path, served):
        return f"Answer: {served}" if path else step(path, served)

    found = lab(ScriptedEngine(script)).solve("tot", options={"order": "dfs", "k": 2, "solutions": 3, "b": 1})
    assert len(found.tree.complete()) == 4
    assert len(found.tree.asked) == 3


def test_pruned_branches_free_their_kv_and_a_finished_search_frees_all(lab):
    one = lab(ScriptedEngine(lambda path, served: "abc"[served] * 20 + "\n\n"))
    engine, held = one.engines[0], []
    found = one.solve(
        "tot",
        verifier=lambda p, t: 0.9 if set(t.split()) <= {"a" * 20} else 0.1,
        options={"b": 1, "k": 3, "max_depth": 2},
        on_event=lambda event: held.append(engine.tree.num_tokens) if event.kind == "wave" else None,
    )
    assert [node.status for node in found.tree.nodes() if node.depth == 1] == ["expanded", "pruned", "pruned"]
    prompt = len(found.tree.prompts[""])
    assert held == [prompt + 3 * 21, prompt + 22 + 3 * 21]
    assert engine.tree.num_tokens == 0


def test_a_pruned_branch_takes_no_kv_of_its_siblings_along(lab):
    """Steps of one token, and one that starts like another: their prefixes are shared with what lives on."""
    one = lab(ScriptedEngine(lambda path, served: "abc"[served] if len(path) < 3 else "Answer: 1"))
    options = {"b": 1, "k": 3, "max_depth": 4}
    sampling = Sampling(boundary=Boundary(tokens=1))
    found = one.solve("tot", verifier=lambda p, t: 0.9 if set(t) <= {"a"} else 0.1, options=options, sampling=sampling)
    assert sum(node.status == "pruned" for node in found.tree.nodes()) >= 6
    assert found.cost.prefilled == len(found.tree.prompts[""]) - 1

    texts = ["aa", "aa bb cc\n\n", "dd\n\n"]
    two = lab(ScriptedEngine(lambda path, served: Branch(tuple(texts[served].encode()), texts[served], "step")))
    found = two.solve("tot", verifier=lambda p, t: 0.9 if "bb" in t else 0.1, options={**options, "max_depth": 2})
    assert [node.status for node in found.tree.nodes() if node.depth == 1] == ["pruned", "expanded", "pruned"]
    assert found.cost.prefilled == len(found.tree.prompts[""]) - 1


def test_registry_names_the_choices():
    with pytest.raises(ValueError, match=r"did you mean 'tot'.*choices"):
        registry.create("tto")
    with pytest.raises(ValueError, match="did you mean 'max_depth'"):
        registry.create("tot", maxdepth=3)
    with pytest.raises(ValueError, match="'bfs' or 'dfs'"):
        registry.create("tot", order="best")
