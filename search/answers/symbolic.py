"""Equality of expressions, sets and matrices, with math-verify and SymPy.

Both are loaded on first use. Their time limits are SIGALRM, which threads cannot use, so they are off, and
`bounds` limits the input instead. Expressions are compared by their values at fixed points and not by
`simplify`, whose time no input size bounds; sets go through `verify`.
"""

import importlib
import re
import threading
import zlib
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

from search.answers.bounds import admissible

_LOCK = threading.Lock()  # the LaTeX parser and mpmath's precision are process-wide state
_POINTS = 8
_DIGITS = 50
_EXACT, _DECIMAL = 1e-40, 1e-12  # relative gap of equal values; the same with decimals inside
_ZERO = 1e-80
_FUNCTION_WORD = re.compile(
    r"(?<![\\A-Za-z])(sqrt|pi|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|infty)(?![A-Za-z])"
)
_EXP = re.compile(r"(?:\\|(?<![A-Za-z]))exp\s*(?=[({])")
_SPOKEN = {"squared": "^2", "cubed": "^3", "factorial": "!"}
_SPOKEN_AFTER = re.compile(r"(?<=[\w)}])\s+(squared|cubed|factorial)(?![A-Za-z])")
_BASE = re.compile(r"\d_\{?\s*(\d+)")  # the parser drops it
_SIGNED_POWER = re.compile(r"\^\s*(-?\d+(?:\.\d+)?)")
_SPACED_PRODUCT = re.compile(r"\*")
_TOP_ROOT = re.compile(r"\\sqrt\s*(?=\()")
_RELATIONS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne "}


def _braced(text: str, opener: str) -> str:
    """`^(a)` as `^{a}` and `\\sqrt(a)` as `\\sqrt{a}`, where the parentheses close."""
    at = text.find(opener + "(")
    while at >= 0:
        start, depth = at + len(opener), 0
        for end in range(start, len(text)):
            depth += (text[end] == "(") - (text[end] == ")")
            if depth == 0:
                text = f"{text[:start]}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
                break
        else:
            return text
        at = text.find(opener + "(", start)
    return text


def spell(text: str) -> str:
    """A plain answer in the LaTeX that the parser reads: `2*sqrt(3)` -> `2\\cdot \\sqrt{3}`."""
    text = _EXP.sub("e^", _SPOKEN_AFTER.sub(lambda found: _SPOKEN[found[1]], text))
    text = _FUNCTION_WORD.sub(lambda word: "\\" + word[1] + " ", text)
    for ascii_form, command in _RELATIONS.items():
        text = text.replace(ascii_form, command)
    text = _SPACED_PRODUCT.sub(r"\\cdot ", _TOP_ROOT.sub(r"\\sqrt", _SIGNED_POWER.sub(r"^{\1}", text)))
    return _braced(_braced(text, "^"), "\\sqrt").strip()


@cache
def _library() -> tuple[Any, Any]:
    """(math_verify, sympy), with the one-off notice about disabled time limits silenced."""
    for module in ("math_verify.parser", "math_verify.grader"):
        vars(importlib.import_module(module))["TIMEOUT_WARNING_SHOWN"] = True
    return importlib.import_module("math_verify"), importlib.import_module("sympy")


@lru_cache(maxsize=1024)
def _parse(text: str) -> Any:
    """The SymPy object of an admissible expression; raises where it is none.

    Not by `math_verify.parse`, which makes one variable of `R` and `r`.
    """
    parser = importlib.import_module("math_verify.parser")
    latex = importlib.import_module("latex2sympy2_extended.latex2sympy2")
    default = parser.LatexExtractionConfig().normalization_config
    text = latex.normalize_latex(text, replace(default, units=False, nits=False, boxed="none"))
    return latex.latex2sympy(
        text,
        is_real=not parser.should_treat_as_complex(text),
        normalization_config=None,
        conversion_config=latex.ConversionConfig(lowercase_symbols=False),
    )


def _point(name: str, index: int, sympy: Any) -> Any:
    """A fixed value of a variable: of either sign, below and above one; `i` is the imaginary unit."""
    if name == "i":
        return sympy.I
    draw = zlib.crc32(f"{name}/{index // 2}".encode()) % 9973 + 1
    size = sympy.Rational(draw, (2999, 9999)[index // 2 % 2])
    return -size if index % 2 else size


def _values(expression: Any, index: int, sympy: Any) -> Any:
    """The value at one point, as a SymPy number, or None where there is none."""
    point = {symbol: _point(symbol.name, index, sympy) for symbol in expression.free_symbols}
    value = expression.evalf(_DIGITS, subs=point)
    return value if value.is_number and value.is_finite else None


def _close(left: Any, right: Any, relative: float) -> bool:
    gap, size = abs(left - right), max(abs(left), abs(right))
    return bool(gap <= max(relative * size, _ZERO))


def _tolerance(left: Any, right: Any, sympy: Any) -> float:
    return _DECIMAL if left.has(sympy.Float) or right.has(sympy.Float) else _EXACT


def _pairs(left: Any, right: Any, sympy: Any) -> list[tuple[Any, Any]]:
    """The two values at each point that has both; complex ones only where none are real."""
    constant = not left.free_symbols | right.free_symbols
    found = []
    for index in range(1 if constant else _POINTS):
        values = _values(left, index, sympy), _values(right, index, sympy)
        if None not in values:
            found.append(values)
    return [pair for pair in found if all(value.is_real for value in pair)] or found


def _same_expression(left: Any, right: Any, sympy: Any) -> bool:
    left, right = left.doit(), right.doit()
    if left == right or (left.is_Rational and right.is_Rational):
        return bool(left == right)
    pairs, relative = _pairs(left, right, sympy), _tolerance(left, right, sympy)
    return bool(pairs) and all(_close(*pair, relative) for pair in pairs)


def _same_equation(left: Any, right: Any, sympy: Any) -> bool:
    """Two equations are one where their sides' differences are a constant multiple of each other."""
    relative = _tolerance(left, right, sympy)
    pairs = _pairs(left.lhs - left.rhs, right.lhs - right.rhs, sympy)
    if not pairs or any(abs(value) <= _ZERO for pair in pairs for value in pair):
        return False
    return all(_close(one * pairs[0][1], other * pairs[0][0], relative) for one, other in pairs)


def _same_object(left: Any, right: Any) -> bool:
    library, sympy = _library()
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _same_expression(left, right, sympy)
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return _same_equation(left, right, sympy)
    if isinstance(left, sympy.MatrixBase) and isinstance(right, sympy.MatrixBase):
        same = zip(left.flat(), right.flat(), strict=False)
        return left.shape == right.shape and all(_same_expression(one, other, sympy) for one, other in same)
    if isinstance(left, sympy.Set) and isinstance(right, sympy.Set):
        orders = ((left, right), (right, left))
        return any(library.verify(*order, timeout_seconds=None) for order in orders)
    return bool(left == right)


def same(left: str, right: str) -> bool:
    """Whether two plain answers are one mathematical object; False where either is not admissible.

    A missing base agrees with any: `2516_8` is `2516` and not `2516_7`.
    """
    left, right = sorted((spell(left), spell(right)))
    bases = set(_BASE.findall(left)), set(_BASE.findall(right))
    if not (admissible(left) and admissible(right)) or (all(bases) and bases[0] != bases[1]):
        return False
    with _LOCK:
        try:
            return _same_object(_parse(left), _parse(right))
        except Exception:  # the libraries raise nearly every type on odd input; odd input equals nothing
            return False
