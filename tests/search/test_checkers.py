"""Answer checkers: what is right, what only looks right, and hostile input to the arithmetic parser."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.answers import extract
from search.checkers import Choice, Exact, Game24, Math, Numeric, Pattern, create, grade, names
from search.checkers.arithmetic import read
from search.types import Problem
from tests.search.calls import Calls


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("(8 - 4) * (7 - 1)", True),
        ("(7-1)*(8-4) = 24", True),
        ("(8 − 4) × (7 − 1)", True),
        (r"\left(8-4\right)\times(7-1)", True),
        (r"$(8-4) \cdot (7-1)$", True),
        ("[8 - 4] x [7 - 1]", True),
        ("-(4 - 8) * (7 - 1)", True),
        ("(8 - 4) * (7 - 1) = 25", False),
        ("(8 - 4) * 6", False),
        ("8 * 4 - 7 - 1", True),
        ("8 * 4 - 7 - 1 + 0", False),
        ("8 + 8 + 7 + 1", False),
        ("24", False),
        ("84 - 71 + 11", False),
        ("(8 - 4) * (7 - 1", False),
        ("", False),
        ("__import__('os').system('true')", False),
        ("8 ** 4", False),
        ("(8-4)(7-1)", False),
    ],
)
def test_game_of_24(answer, right):
    assert Game24("1 4 7 8")(answer) is right


def test_game_of_24_needs_fractions():
    assert Game24("3 3 8 8")("8 / (3 - 8 / 3)")
    assert Game24("3 3 8 8")(r"8 \div (3 - \frac{8}{3})")
    assert Game24("1 5 5 5")("5 * (5 - 1 / 5)")
    assert not Game24("1 5 5 5")("5 * (5 - 1 / 5 / 0)")
    assert Game24("2 3 4", target=14)("2 + 3 * 4 = 14")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("8 / 4 / 2", 1),
        ("8 - 4 - 2", 2),
        ("- 3 + 5", 2),
        ("2*-3", -6),
        ("6 x 4", 24),
    ],
)
def test_arithmetic(text, value):
    found = read(text)
    assert found is not None and found.value == value


@pytest.mark.parametrize(
    "text", ["", " ", "+", "1 +", "1 2", "1 + a", "()", "1 / 0", "1/(2-2)", "1e9", "9" * 12, "(" * 60 + "1" + ")" * 60]
)
def test_what_is_no_arithmetic_is_none(text):
    assert read(text) is None


@given(st.text(alphabet="0123456789+-*/() xX{}[]\\frac$=.eE", max_size=400))
def test_the_parser_never_raises_and_never_takes_long(text):
    calls = Calls()
    with calls:
        read(text)
    assert calls.count < 30 * (len(text) + 10)


@given(st.recursive(st.integers(0, 99).map(str), lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
    lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"), max_leaves=8))  # fmt: skip
def test_arithmetic_has_the_value_that_python_gives(text):
    found = read(text)
    if len(text) <= 200 and text.count("(") <= 15:
        assert found is not None and found.value == eval(text, {"__builtins__": {}})


@pytest.mark.parametrize(
    ("checker", "right", "wrong"),
    [
        (Numeric("42"), ["42", "42.0", "The answer is 42.", "$42"], ["43", "", "none", "4.2"]),
        (Numeric("#### 1,000"), ["1000", "1e3"], ["100"]),
        (Numeric("3.14159", tolerance=0.01), ["3.14", "3.15"], ["3.2", "pi"]),
        (Math(r"\frac{1}{2}"), ["0.5", "1/2", r"\boxed{\frac12}"], ["2", "0.25"]),
        (Math("x^2+2x+1"), ["(x+1)^2"], ["(x+1)^3"]),
        (Choice("B"), ["B", "(b)", "The answer is B.", "B) four"], ["A", "A and B", "four", ""]),
        (Exact(" Paris "), ["Paris", "Paris\n"], ["paris", "Paris."]),
        (Pattern(r"\d{3}-\d{4}"), ["555-1234", " 555-1234 "], ["call 555-1234", "555-12345", "1" * 2000]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_checkers(checker, right, wrong):
    assert [answer for answer in right if not checker(answer)] == []
    assert [answer for answer in wrong if checker(answer)] == []
    assert pickle.loads(pickle.dumps(checker)) == checker


def test_checkers_by_name():
    assert names() == ["choice", "exact", "game24", "math", "numeric", "regex"]
    assert create("game24", "4 4 6 8")("4 * 6 + 4 - 4") is False
    assert create("numeric", "5")("5.0") is True
    with pytest.raises(ValueError, match=r"unknown checker 'number'; choices: choice, exact, game24"):
        create("number", "5")
    with pytest.raises(ValueError, match=r"'\(' is no regular expression"):
        create("regex", "(")
    with pytest.raises(ValueError, match="at least 2 numbers, such as '4 4 6 8', got 'x'"):
        create("game24", "x")
    with pytest.raises(ValueError, match=r"tolerance must be in \[0, 1\), got 1"):
        Numeric("5", tolerance=1)


def test_grade_uses_the_checker_or_the_reference():
    checked = Problem("Use 1 4 7 8", kind="text", checker=Game24("1 4 7 8"))
    assert grade(checked, "(8-4)*(7-1)") is True
    assert grade(checked, "24") is False and grade(checked, None) is False
    referred = Problem("What is 3/4?", reference="It is #### 0.75")
    assert grade(referred, "3/4") is True and grade(referred, "4/3") is False
    assert grade(Problem("Open question"), "7") is None
    assert grade(Problem("Open question", reference=" "), "7") is None

    def broken(answer):
        raise OSError("gone")

    assert grade(Problem("?", checker=broken), "7") is None


BARE = [
    ("x^2 + y^2 = 25", "25"),
    ("5x - 7y + 11z + 4 = 0", "0"),
    (r"\begin{pmatrix} -2 \\ 3 \end{pmatrix}", "3"),
    ("a=1, b=2", "2"),
    ("x = 2 + t, y = 3 - t", "3 - t"),
    (r"\text{June 20}", "20"),
]


@pytest.mark.parametrize("kind", ["auto", "math", "text"])
@pytest.mark.parametrize(("reference", "rest"), BARE)
def test_a_bare_reference_is_the_answer_itself(reference, rest, kind):
    problem = Problem("?", kind=kind, reference=reference)
    for reply in (rf"So it is $\boxed{{{reference}}}$.", f"So.\n\nThe final answer is ${reference}$"):
        assert grade(problem, extract(reply, kind)) is True
    assert grade(problem, rest) is False
    assert Math(reference)(reference) and not Math(reference)(rest)


def test_exact_answers_are_graded_letter_by_letter():
    problem = Problem("?", kind="exact", reference="4*6 ")
    assert grade(problem, " 4*6") is True and grade(problem, "24") is False and grade(problem, "4 * 6") is False
    stated = Problem("?", kind="exact", reference="By trial.\n#### AB")
    assert grade(stated, "AB") is True and grade(stated, "ab") is False


def test_a_reference_of_several_lines_may_be_a_reply():
    problem = Problem("?", kind="auto", reference="She sells 9 eggs.\nThat is 9 * 2 = $18 every day.")
    assert grade(problem, "18") is True and grade(problem, "9") is False


def test_a_checker_is_no_part_of_a_problems_identity():
    assert Problem("p", "1", checker=Exact("a")) == Problem("p", "1", checker=Exact("b"))
    assert hash(Problem("p", "1", checker=Exact("a"))) == hash(Problem("p", "1"))
