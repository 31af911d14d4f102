"""The value prompt: a state rated by labels, read as an expectation, or written where an engine gives no scores."""

import asyncio

import pytest

from engine.base import flat
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.ports import Candidate
from search.prompts import CHECK_SYSTEM, ChatPrompt
from search.types import Problem
from search.verifiers.value import MOST_REPLY, SCALES, ValueEvaluation, value_questions

PROBLEM = Problem("Make 24 of 4 9 10 13.", "p", reference="42")
TEXT_ONLY = frozenset({"logprobs", "confidence"})


class Listening(ScriptedEngine):
    """Keeps what it is asked to judge."""

    def __init__(self, script=("Answer: 42",), value=0.75, **options):
        super().__init__(script, lambda path, question: value, **options)
        self.asked = []

    def score(self, queries):
        self.asked += queries
        return super().score(queries)


def candidate(pool, *steps: str, complete: bool = False) -> Candidate:
    context = (pool.encode(ChatPrompt().messages(PROBLEM)), *(tuple(step.encode()) for step in steps))
    return Candidate(PROBLEM, f"r.{len(steps)}", context, steps, complete)


def ask(verifier, *batch):
    return asyncio.run(verifier.score(batch))


def test_a_state_is_rated_behind_its_own_kv(lab):
    engine = Listening()
    pool = lab(engine).pool
    step, answer = candidate(pool, "13 - 9 = 4\n\n"), candidate(pool, "13 - 9 = 4\n\n", "Answer: 42", complete=True)
    verdicts = ask(ValueEvaluation(pool), step, answer)
    assert [(v.score, v.by, v.error) for v in verdicts] == [(0.75, "value", None)] * 2
    assert [query.path for query in engine.asked] == [step.context, answer.context]
    first, second = (query.question for query in engine.asked)
    assert "still lead to the right answer" in first and "final answer above right" in second
    assert [v.cost.verified for v in verdicts] == [len(query.question.encode()) + 1 for query in engine.asked]
    assert ValueEvaluation(pool).tokens_to_score([step, answer]) == sum(v.cost.verified for v in verdicts)


def test_words_serve_where_they_are_single_tokens_and_digits_where_not(lab, monkeypatch):
    engine = Listening()
    pool = lab(engine).pool
    ask(ValueEvaluation(pool), candidate(pool, "a"))
    words = {"sure": 1, "likely": 1, " impossible": 1, "Sure": 1, "Likely": 1, "Impossible": 1}
    monkeypatch.setattr(type(pool), "count_tokens", lambda self, text: words.get(text, 3))
    ask(ValueEvaluation(pool), candidate(pool, "a"))
    ask(ValueEvaluation(pool, scale="digits"), candidate(pool, "a"))
    digits, sure, again = engine.asked
    assert (digits.values, sure.values, again.values) == (SCALES["digits"], SCALES["words"], SCALES["digits"])
    assert "from 1 for impossible to 9 for sure" in digits.question == again.question
    assert "sure, likely, impossible" in sure.question


def test_values_go_from_zero_to_one():
    for values in SCALES.values():
        assert {value for _, value in values} >= {0.0, 1.0} and all(0 <= value <= 1 for _, value in values)
    assert len(value_questions("auto")) == 4 and len(value_questions("words")) == 2


@pytest.mark.parametrize(
    ("reply", "score", "error"),
    [
        ("Sure.", 1.0, None),
        (" likely", 0.5, None),
        ("It's impossible", 0.0, None),
        ("unlikely", None, "wrote none of sure, likely, impossible: 'unlikely'"),
        ("", None, "wrote none of"),
    ],
)
def test_an_engine_without_scores_writes_a_label(lab, reply, score, error):
    engine = ScriptedEngine([reply], capabilities=TEXT_ONLY)
    pool = lab(engine).pool
    verifier = ValueEvaluation(pool, scale="words")
    (verdict,) = ask(verifier, candidate(pool, "13 - 9 = 4"))
    assert verdict.score == score and (error is None or error in verdict.error)
    assert verdict.cost.generated == 0 and verdict.cost.verified > 8


def test_written_labels_are_freed_and_bounded(lab):
    engine = ScriptedEngine(["sure and quite a lot more text than a label needs"], capabilities=TEXT_ONLY)
    pool = lab(engine).pool
    path = candidate(pool, "13 - 9 = 4")
    engine._hold(flat(path.context)[:-1])
    (verdict,) = ask(ValueEvaluation(pool, scale="words"), path)
    assert verdict.score == 1.0
    assert engine.counts["generated"] == MOST_REPLY
    assert engine.tree.num_tokens == sum(map(len, path.context)) - 1


def test_a_failing_engine_is_an_error(lab):
    def broken(path, served):
        raise RuntimeError("no")

    pool = lab(ScriptedEngine(broken, capabilities=TEXT_ONLY)).pool
    (verdict,) = ask(ValueEvaluation(pool), candidate(pool, "a"))
    assert verdict.score is None and "RuntimeError" in verdict.error


def test_a_chat_of_its_own(lab):
    engine = Listening()
    pool = lab(engine).pool
    ask(ValueEvaluation(pool, prompt="separate"), candidate(pool, "13 - 9 = 4"))
    (query,) = engine.asked
    assert CHECK_SYSTEM.encode() in bytes(query.path[0]) and "13 - 9 = 4" in query.question
    assert ValueEvaluation(pool, prompt="separate").kept(PROBLEM) == [query.path]


@pytest.mark.parametrize("options", [{"scale": "stars"}, {"prompt": "fresh"}])
def test_unknown_choices_are_refused_by_name(lab, options):
    with pytest.raises(ValueError, match=r"stars|fresh"):
        ValueEvaluation(lab(Listening()).pool, **options)


@pytest.mark.parametrize("capabilities", [None, TEXT_ONLY], ids=["read", "written"])
def test_a_tree_of_thoughts_by_values(lab, capabilities):
    def script(path, served):
        if path and "Reply with" in path[-1]:
            return "9" if "42" in path[-2] else "2"
        return ["Answer: 41", "Answer: 42", "Answer: 40"][served % 3]

    judge = lambda path, question: 0.9 if "42" in "".join(path) else 0.2  # noqa: E731
    engine = ScriptedEngine(script, judge, capabilities=capabilities)
    found = lab(engine)
    result = found.solve("tot", PROBLEM, verifier=ValueEvaluation(found.pool), options={"b": 1, "k": 3})
    assert (result.answer, result.correct, result.warnings) == ("42", True, ())


def test_a_search_on_the_simulated_engine(lab):
    found = lab(SimulatedEngine(depth=4, judge_noise=0.05))
    result = found.solve("tot", verifier=ValueEvaluation(found.pool), options={"b": 2, "k": 3})
    assert result.complete and all(node.score is not None for node in result.tree.nodes() if node.parent)
