"""Cases of the driver: failing engines and verifiers, validation, step boundaries, thinking, overhead, events."""

import json
import time

import pytest

from actors.dispatcher import PoolOptions
from engine.base import Branch
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from engine.text_engine import Latency
from search.driver import validate
from search.steps import spoken, states_final
from search.strategies import registry
from search.types import Boundary, Problem, Sampling, Verdict
from search.verifiers.function import Confidence
from search.verifiers.self_evaluation import SelfEvaluation

ALL = registry.names()


def broken(path, served):
    raise RuntimeError("CUDA error: device-side assert")


@pytest.mark.parametrize("name", ALL)
def test_case_19_an_engine_that_always_raises_is_given_up_with_its_error(lab, name):
    one = lab(ScriptedEngine(broken), options=PoolOptions(attempts=3))
    found = one.solve(name)
    assert found.stop_reason == "failed"
    assert found.error == "RuntimeError: CUDA error: device-side assert"
    assert (found.answer, found.complete, len(found.tree)) == (None, False, 1)
    assert found.tree.root.reason == found.error
    assert len(found.tree.asked) <= 8
    assert one.count("calls") <= 3 * len(found.tree.asked)
    assert len(one.failures) == one.count("calls")
    assert json.loads(json.dumps(found.to_json()))["error"] == found.error


def test_case_19_an_engine_that_breaks_midway_leaves_the_best_so_far(lab):
    def script(path, served):
        return broken(path, served) if len(path) == 1 and served else "on with 5\n\n" if not path else "Answer: 5"

    found = lab(ScriptedEngine(script)).solve("mcts", options={"k": 2})
    assert found.stop_reason != "failed" and found.error is None
    assert found.tree.node("r.0").status == "dead"
    assert found.tree.node("r.0").reason.startswith("RuntimeError: CUDA")


def test_a_path_longer_than_the_context_fails_alone(lab):
    one = lab(ScriptedEngine(lambda path, served: "x" * 40 + "\n\n", context_length=600))
    found = one.solve("greedy", options={"max_depth": 20})
    assert ["exceeds the context of 600" in n.reason for n in found.tree.nodes() if n.status == "dead"] == [True]
    assert found.error is None and len(found.tree) > 2


@pytest.mark.parametrize("name", ["tot", "mcts"])
@pytest.mark.parametrize("kind", ["raises", "too few", "out of range", "nan", "no score"])
def test_a_verifier_that_fails_costs_scores_not_the_search(lab, name, kind):
    class Bad:
        needs = frozenset()

        async def score(self, batch):
            if kind == "raises":
                raise OSError("the reward model is gone")
            verdicts = [Verdict(None, "bad", error="no idea")] * len(batch)
            return verdicts[:-1] if kind == "too few" else verdicts

    verifier = {"out of range": lambda p, t: 1.5, "nan": lambda p, t: float("nan")}.get(kind) or Bad()
    found = lab(SimulatedEngine()).solve(name, verifier=verifier)
    assert found.complete and found.answer is not None
    assert all(node.score is None for node in found.tree.nodes())
    expected = {
        "raises": "verifier: Bad raised OSError: the reward model is gone",
        "too few": "verdicts for",
        "out of range": "returned 1.5, not a score in [0, 1]",
        "nan": "returned nan, not a score",
        "no score": "verifier: no idea",
    }[kind]
    assert any(expected in text for text in found.warnings)
    leaf = next(node for node in found.tree.nodes() if node.status == "pruned" or node.complete)
    assert leaf.reason


def test_the_verifier_and_the_tree_agree_on_what_is_finished(lab):
    """A stop string finishes a path; a cut step never does, whatever it states."""
    seen = {}

    class Spy:
        needs = frozenset()

        async def score(self, batch):
            seen.update({c.node_id: c.complete for c in batch})
            return [Verdict(0.5, "spy")] * len(batch)

    branches = [
        Branch((65,), "stopped", "stop"),
        Branch((66,), "Answer: 1", "length"),
        Branch((67,), "Answer: 2\n\n", "step"),
        Branch((68,), "no answer\n\n", "step"),
        Branch((69,), "Answer: 3", "cancelled"),
    ]
    found = lab(ScriptedEngine(lambda path, served: branches[served])).solve(
        "tot", verifier=Spy(), options={"k": 5, "max_depth": 1}
    )
    assert seen == {"r.0": True, "r.1": False, "r.2": True, "r.3": False, "r.4": False}
    assert {node.id: node.complete for node in found.tree.nodes() if node.depth} == seen


# -- validation ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["tot", "mcts"])
def test_case_50_an_engine_without_scores_is_refused_with_a_substitute(lab, name):
    one = lab(ScriptedEngine(["Answer: 1"], capabilities=frozenset({"logprobs"})))
    with pytest.raises(ValueError, match=r"needs score.*gives: logprobs.*use strategy 'self_consistency' or 'greedy'"):
        one.solve(name)
    with pytest.raises(ValueError, match="needs confidence"):
        one.solve(name, verifier=Confidence())
    assert one.count("calls") == 0
    assert one.solve(name, verifier=lambda p, t: 0.5).answer == "1"
    assert one.solve("self_consistency").answer == "1"


def test_case_50_a_strategy_of_ones_own_is_named(lab):
    class Needy(registry.strategy_class("greedy")):
        name = "needy"
        needs = frozenset({"hidden"})

    with pytest.raises(ValueError, match=r"strategy 'needy' needs hidden"):
        validate(frozenset({"score"}), Needy(), None)
    validate(frozenset({"hidden"}), Needy(), None)


def test_case_52_the_root_forks_before_any_token(lab):
    one = lab(ScriptedEngine([f"Answer: {n}" for n in range(5)]))
    found = one.solve("tot", options={"k": 5})
    assert [node.id for node in found.tree.children(found.tree.root)] == [f"r.{i}" for i in range(5)]
    assert len(found.tree.prompts[""]) - 1 == found.cost.prefilled


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_case_52_an_empty_problem_is_an_error(text):
    with pytest.raises(ValueError, match="problem is empty"):
        Problem(text)


# -- steps ---------------------------------------------------------------------------------------------------------
LONG = "First we add. Then we double; STOP now we halve.\n\nAnswer: 6"


@pytest.mark.parametrize(
    ("boundary", "first"),
    [
        (Boundary(), "First we add. Then we double; STOP now we halve.\n\n"),
        (Boundary(delimiter=";"), "First we add. Then we double;"),
        (Boundary(delimiter=None, tokens=9), "First we "),
        (Boundary(tokens=9), "First we "),
        (Boundary(delimiter=None, regex=r"\.\s"), "First we add. "),
        (Boundary(delimiter=None, fn=lambda text: text.count(" ") == 3), "First we add. "),
        (Boundary.none(), LONG),
    ],
)
def test_case_55_where_a_step_ends(lab, boundary, first):
    one = lab(ScriptedEngine(lambda path, served: LONG[len("".join(path)) :]))
    found = one.solve("greedy", sampling=Sampling(boundary=boundary), options={"max_depth": 40})
    assert found.tree.node("r.0").thought.text == first
    assert (found.text, found.answer, found.complete) == (LONG, "6", True)


def test_case_55_a_step_is_exactly_so_many_tokens(lab):
    one = lab(ScriptedEngine(lambda path, served: LONG[len("".join(path)) :]))
    boundary = Boundary(delimiter=None, tokens=7)
    found = one.solve("greedy", sampling=Sampling(boundary=boundary), options={"max_depth": 40})
    lengths = [len(node.thought.token_ids) for node in found.tree.nodes()][1:]
    assert set(lengths[:-1]) == {7} and found.complete


def test_case_55_a_boundary_that_is_no_regular_expression_is_refused():
    with pytest.raises(ValueError, match=r"a boundary's regex is a regular expression, got '\(step': missing \)"):
        Boundary(regex="(step")


def test_case_55_leading_blank_lines_close_no_step(lab):
    one = lab(ScriptedEngine(lambda path, served: "\n\n\u3000\n\nfirst\n\nrest" if not path else "Answer: 1"))
    found = one.solve("greedy")
    assert found.tree.node("r.0").thought.text == "\n\n\u3000\n\nfirst\n\n"


def test_case_55_a_stop_string_ends_the_path(lab):
    one = lab(ScriptedEngine(lambda path, served: LONG))
    found = one.solve("greedy", sampling=Sampling(stop=("STOP",)))
    node = found.tree.node("r.0")
    assert (node.thought.text[-4:], node.thought.finish, node.complete) == ("STOP", "stop", True)


THOUGHT = ["<think>Perhaps the answer is 5.\n\n", "So the answer is 6.\n\n", "Or not: the answer is 7.</think>\n\n"]


@pytest.mark.parametrize("name", ["greedy", "tot", "mcts"])
def test_case_55_what_thinking_states_is_no_answer(lab, name):
    def script(path, served):
        return [*THOUGHT, "The answer is 8.\n\n"][len(path)] + "more"

    found = lab(ScriptedEngine(script)).solve(name)
    assert [node.complete for node in found.tree.path(found.tree.node(found.node_id))] == [False] * 4 + [True]
    assert (found.answer, found.complete) == ("8", True)


def test_case_55_thinking_that_never_ends_states_nothing(lab):
    found = lab(ScriptedEngine(lambda path, served: THOUGHT[min(len(path), 1)])).solve("greedy")
    assert (found.answer, found.complete, found.stop_reason) == (None, False, "depth")


def test_case_55_spoken_text_is_outside_of_thinking():
    assert spoken("", "a<think>b</think>c") == "ac"
    assert spoken("x<think>y", "b</think>c<THINK>d") == "c"
    assert spoken("<think>y</think>", "c") == "c"
    assert spoken("", "the template opened it</think>c") == "c"
    assert states_final("<think>Answer: 5</think> Answer: 6") and not states_final("<think>Answer: 5")
    assert not states_final("Answer: 5</think> hm") and not states_final("The answer may be found")


@pytest.mark.parametrize(
    ("step", "final"),
    [
        ("#### 12", True),
        ("#### yes", True),
        ("**Answer:** 12", True),
        ("We get the answer: 12.", True),
        ("So the answer is 5.", True),
        ("#### Step 1: Multiply 7 trays by 12 rolls.\n\n", False),
        ("#### Verification\n\n", False),
        ("To find the answer: first, multiply 7 by 12 and get 84.\n\n", False),
        ("The answer is not 5.\n\n", False),
        ("I think the answer is correct.\n\n", False),
        ("The answer is as follows:\n\n", False),
    ],
)
def test_a_heading_or_a_passing_mention_ends_no_path(step, final):
    assert states_final(step) is final


# -- cost ----------------------------------------------------------------------------------------------------------
def test_case_33_a_hundred_calls_of_a_fast_engine_cost_little_overhead(lab):
    naps = []

    def script(path, served):
        return f"Thought number {served} goes on for a while, as thoughts do.\n\n"

    one = lab(ScriptedEngine(script, latency=Latency(per_call_s=0.001), sleep=naps.append))
    began = time.process_time()
    found = one.solve("mcts", verifier=lambda p, t: 0.5, options={"simulations": 100, "leaves": 1, "max_depth": 30})
    assert len(naps) == len(found.tree.asked) == 100
    assert time.process_time() - began < 1.0


def test_phases_and_tokens_add_up(lab):
    one = lab(SimulatedEngine(latency=Latency(per_call_s=0.5, prefill_rate=1000.0, step_s=0.01)))
    found = one.solve("tot")
    cost = found.cost
    assert cost.generated == one.count("generated")
    assert cost.prefilled >= one.count("prefilled") > 0
    assert cost.seconds["prefill"] == pytest.approx(one.count("prefilled") / 1000.0)
    assert cost.seconds["decode"] >= 0.5 * one.count("calls")
    assert sum(row["generated"] for row in found.engines.values()) == cost.generated
    rows = sum(order.n * (sum(map(len, order.context)) - 1) for order in found.tree.asked.values())
    assert one.count("prefilled") + one.count("reused") == rows


def test_events_tell_the_whole_story(lab):
    events = []
    found = lab(SimulatedEngine()).solve("tot", on_event=events.append)
    kinds = [event.kind for event in events]
    assert (kinds[0], kinds[-1]) == ("start", "finish")
    nodes = [event.data["node"] for event in events if event.kind == "node"]
    assert sorted(nodes) == sorted(node.id for node in found.tree.nodes() if node.depth)
    assert sum(event.data["expansions"] for event in events if event.kind == "wave") == len(found.tree.asked)
    assert all(json.dumps(dict(event.data)) for event in events)


def test_self_evaluation_asks_about_steps_and_answers(lab):
    asked = []

    def judge(path, question):
        asked.append((path[-1], question))
        return 0.25

    one = lab(ScriptedEngine(lambda path, served: "Answer: 1" if path else "go on.\n\n", judge))
    found = one.solve("tot", verifier=SelfEvaluation(one.pool, "STEP?", "ANSWER?"), options={"k": 1})
    assert [question for _, question in asked] == ["\n<user>STEP?\n<assistant>", "\n<user>ANSWER?\n<assistant>"]
    assert [text for text, _ in asked] == ["go on.\n\n", "Answer: 1"]
    assert [node.score for node in found.tree.nodes()] == [None, 0.25, 0.25]
    assert found.cost.verified == sum(len(question) + 1 for _, question in asked)
