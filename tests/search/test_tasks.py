"""Tasks: rows of public data sets and of one's own become problems that can be answered and graded."""

import json
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from engine.scripted import ScriptedEngine
from search.checkers import grade
from search.prompts import ChatPrompt
from search.tasks import Task, create, names, register, registry
from search.tasks.reasoning_gym import ReasoningGym
from search.types import Sampling

DATA = Path(__file__).parents[1] / "data"


def test_gsm8k_rows():
    rows = [json.loads(line) for line in (DATA / "gsm8k_3.jsonl").read_text(encoding="utf-8").splitlines()]
    problems = create("gsm8k").problems(rows)
    assert [problem.text for problem in problems] == [row["question"] for row in rows]
    whole = create("gsm8k").problem({"question": "How much?", "answer": "9 * 2 = $<<9*2=18>>18\n#### 18", "id": 7})
    assert (whole.id, whole.kind) == ("7", "number")
    assert grade(whole, "$18.00") is True and grade(whole, "9") is False


@pytest.mark.parametrize(
    ("row", "letter"),
    [
        ({"choices": ["red", "green", "blue"], "answer": 2}, "C"),
        ({"choices": ["red", "green", "blue"], "answer": "B"}, "B"),
        ({"choices": {"text": ["red", "green"], "label": ["A", "B"]}, "answerKey": "B"}, "B"),
        ({"choices": {"text": ["red", "green", "blue"], "label": ["1", "2", "3"]}, "answerKey": "3"}, "C"),
        ({"choices": ["red", "green"]}, None),
    ],
)
def test_multiple_choice_rows(row, letter):
    problem = create("multiple_choice").problem({"question": "Which colour? ", **row})
    assert problem.text.startswith("Which colour?\n\nA) red\nB) green")
    assert (problem.reference, problem.kind) == (letter, "choice")
    if letter:
        assert grade(problem, f"({letter.lower()})") is True and grade(problem, "J") is False


def test_math_rows():
    task = create("math")
    solved = task.problem({"problem": "Half?", "solution": r"Clearly it is $\boxed{\frac{1}{2}}$.", "level": "Level 1"})
    assert grade(solved, "0.5") is True and grade(solved, "2") is False
    assert grade(task.problem({"problem": "Half?", "answer": r"\frac12"}), "1/2") is True


@pytest.mark.parametrize("row", [{"Puzzles": "1 4 7 8"}, {"numbers": [1, 4, 7, 8]}, {"question": "1 4 7 8"}])
def test_game_of_24_rows(row):
    problem = create("game24").problem(row)
    assert "1 4 7 8" in problem.text and problem.reference is None
    assert grade(problem, "(8 - 4) * (7 - 1) = 24") is True and grade(problem, "4 * 6") is False


def test_game_of_24_from_prompt_to_result(lab):
    """Lines are steps, the stated expression is the answer, and the checker grades it."""
    task = create("game24")
    text = "8 - 4 = 4 (left: 1 4 7)\n7 - 1 = 6 (left: 4 6)\n4 * 6 = 24\nAnswer: (8 - 4) * (7 - 1) = 24"
    one = lab(ScriptedEngine(lambda path, served: text[len("".join(path)) :]))
    found = one.solve(
        "greedy",
        task.problem({"numbers": "1 4 7 8"}),
        sampling=Sampling(boundary=task.boundary),
        prompt=ChatPrompt(task.system, task.instruction),
    )
    assert (found.tree.height, found.answer, found.correct) == (4, "(8 - 4) * (7 - 1) = 24", True)
    assert task.instruction in one.engines[0].prompts[0]


def test_a_row_with_question_and_answer_is_enough_for_ones_own_task():
    plain = create("plain")
    problem = plain.problem({"question": "Capital of France?", "answer": "Paris"})
    assert grade(problem, "paris.") is True
    assert grade(plain.problem({"question": "Open?"}), "7") is None
    checked = plain.problem({"question": "Code?", "answer": r"[A-Z]\d", "checker": "regex"})
    assert grade(checked, "B7") is True and grade(checked, "7B") is False


@pytest.mark.parametrize("blank", ["", " \n", None])
def test_a_blank_answer_is_unknown_and_leaves_the_word_to_the_other_column(blank):
    for name in ("plain", "gsm8k", "math"):
        unknown = create(name).problem({"question": "How many?", "answer": blank})
        assert unknown.reference is None and grade(unknown, "7") is None
    assert grade(create("math").problem({"problem": "Half?", "answer": blank, "solution": r"\boxed{5}"}), "5") is True
    row = {"question": "Which?", "choices": ["a", "b"], "answer": blank}
    assert create("multiple_choice").problem(row).reference is None
    assert create("multiple_choice").problem({**row, "answerKey": "B"}).reference == "B"
    with pytest.raises(ValueError, match="needs an 'answer'"):
        create("plain").problem({"question": "?", "answer": blank, "checker": "numeric"})


def test_a_small_class_is_a_task_of_ones_own():
    @register
    @dataclass(frozen=True)
    class Riddles(Task):
        name: ClassVar[str] = "riddles"
        instruction: str = "Answer with one word."

        def question(self, row):
            return f"What am I? {row['riddle']}"

    try:
        problem = create("riddles").problem({"riddle": "I have keys but no locks.", "answer": "piano"})
        assert problem.text == "What am I? I have keys but no locks."
        assert grade(problem, "A piano") is True
        assert "riddles" in names()
    finally:
        registry._REGISTERED.pop("riddles")


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("plain", {"q": "?"}, "row 1: needs a text under 'question' or 'problem', has 'q'"),
        ("plain", {"question": " "}, "row 1: problem is empty"),
        ("plain", {"question": "?", "checker": "regex"}, "row 1: checker 'regex' needs an 'answer' to check against"),
        ("plain", {"question": "?", "answer": "1", "checker": "x"}, "row 1: unknown checker 'x'; choices: choice"),
        ("multiple_choice", {"question": "?", "choices": ["a"]}, "row 1: needs 2 to 10 options under 'choices'"),
        (
            "multiple_choice",
            {"question": "?", "choices": ["a", "b"], "answer": 5},
            "answer 5 is neither an index below 2",
        ),
        (
            "multiple_choice",
            {"question": "?", "choices": {"text": ["a", "b"], "label": ["A"]}},
            "1 labels for 2 options",
        ),
        ("game24", {"numbers": "7"}, "row 1: checker game24 needs at least 2 numbers, such as '4 4 6 8', got '7'"),
    ],
)
def test_a_row_that_does_not_fit_is_named(name, row, message):
    with pytest.raises(ValueError) as raised:
        create(name).problems([row])
    assert message in str(raised.value)


def test_tasks_by_name():
    assert names() == ["game24", "gsm8k", "math", "multiple_choice", "plain", "reasoning_gym"]
    with pytest.raises(ValueError, match="unknown task 'gsm8', did you mean 'gsm8k'"):
        create("gsm8")
    with pytest.raises(ValueError, match="needs a name of its own, got 'plain'"):
        register(type("Nameless", (Task,), {}))


# -- reasoning-gym -------------------------------------------------------------------------------------------------
def test_without_reasoning_gym_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ImportError, match=r"needs the package reasoning-gym: pip install 'rksc-orchestrator\[tasks\]'"):
        ReasoningGym("chain_sum").generate(3)


class FakeSet(list):
    """What the task uses of a reasoning-gym data set."""

    def score_answer(self, answer, entry):
        return 1.0 if answer == entry["answer"] else 0.01


def test_generated_tasks_are_scored_by_their_data_set(monkeypatch):
    def create_dataset(name, size, seed, **config):
        if name != "sums":
            raise ValueError(f"Dataset '{name}' not registered")
        if config.keys() - {"terms"}:
            raise TypeError("unexpected keyword argument")
        return FakeSet({"question": f"{seed} + {i} =", "answer": str(seed + i)} for i in range(size))

    monkeypatch.setitem(sys.modules, "reasoning_gym", types.SimpleNamespace(create_dataset=create_dataset))
    problems = create("reasoning_gym", dataset="sums").generate(3, seed=5, terms=2)
    assert [(problem.id, problem.text) for problem in problems] == [(f"sums-5-{i}", f"5 + {i} =") for i in range(3)]
    assert grade(problems[2], "7") is True and grade(problems[2], "8") is False
    with pytest.raises(ValueError, match=r"reasoning_gym 'nope' with \{\}: Dataset 'nope' not registered"):
        create("reasoning_gym", dataset="nope").generate(1)
    with pytest.raises(ValueError, match="unexpected keyword"):
        create("reasoning_gym", dataset="sums").generate(1, digits=3)


def test_the_real_package_if_it_is_there():
    pytest.importorskip("reasoning_gym")
    problems = ReasoningGym("chain_sum").generate(5, seed=3, min_terms=4, max_terms=4)
    assert all(grade(problem, problem.reference) is True for problem in problems)
    assert all(grade(problem, "no") is False for problem in problems)
    assert problems == ReasoningGym("chain_sum").generate(5, seed=3, min_terms=4, max_terms=4)
