"""What a sentence puts around a complete answer, taken off: `5 (3 + 2)`, `50 rolls that must be sold`."""

import re

from search.answers.latex import FENCE, MAX_CHARS, plain, soften
from search.answers.quantity import number_end, read_quantity, split_note
from search.answers.units import leading_unit, split_unit
from search.answers.words import has_number_word

_MATH = re.compile(
    r"[\d\\^=+*/<>|∞π√]|^-?[A-Za-z]$|^[A-Z]{2,3}$|(?<![A-Za-z])[A-Za-z]\)?\s*-\s*\(?[A-Za-z](?![A-Za-z])"
)
_SYSTEM = re.compile(r"=[^=]*[,;]\s*(?:\\quad\s*)?[A-Za-z](?:_\{?\w\}?)?\s*=")
_WORD = re.compile(r"(?<![\\A-Za-z])(?:[A-Za-z]{3,}|(?i:it|is|we|so|to|of)(?![A-Za-z]))|[^\W\d_A-Za-z]{2,}")
_COPULA = re.compile(
    r"(?:^|\s)(?:is|are|was|were|equals?|becomes?|gives?|gets?|have|has|makes?|obtain|(?:comes|equal|amounts)\s+to)\s+"
    r"|(?<=\w)['’]s\s+",
    re.IGNORECASE,
)
_SUM = re.compile(r"(?:=\s*|(?=[\d$\\]))[\d\s.,\\$%^+\-*/×÷·=]*[+\-*/×÷·=]\s*\\?\$?\d[\d\s.,\\$%^+\-*/×÷·=]*")
_BRACKETED = re.compile(r"(?P<head>.*\S)\s+\((?P<note>[^()]*(?:\([^()]*\)[^()]*){0,4})\)", re.DOTALL)
_ENDING_NOTE = re.compile(r"(\d[\d.,]{0,50}%?(?:\s[A-Za-z]{1,20}){0,2}\s)\(([^()]{1,200})\)(?=[*_.!\s]*$)")
_PROSE = re.compile(r"(?P<marks>[*_$]*)(?P<comma>[,;:]?)\s+(?P<words>[^\W\d_][^\d\\^=+*/<>|$]*)", re.DOTALL)
_PROSE_WORD = re.compile(r"[^\W_]['’\w-]*[.,;:!?]*")
_JOINERS = frozenset(
    [
        "and",
        "or",
        "plus",
        "minus",
        "times",
        "divided",
        "multiplied",
        "over",
        "to",
        "out",
        "x",
        "by",
        "if",
        "when",
        "for",
    ]
)
_COMPARED = frozenset(["more", "less", "fewer", "greater", "smaller", "larger"])
_MIN_PROSE = 3  # words; up to two name the unit


def is_formula(text: str) -> bool:
    """Whether the text is an expression, perhaps with a unit, and no prose."""
    text = soften(text)
    expression = split_unit(text)[0]
    words = text[len(expression) :].split()
    unit = len(words) < _MIN_PROSE or leading_unit(words) == len(words)
    return bool(_MATH.search(text)) and unit and not _WORD.search(expression)


def is_equation(text: str) -> bool:
    """Whether an equation or a system is the answer itself, and no calculation: `x^2 + y^2 = 25`, `x = 3, y = 4`."""
    if has_prose(text):
        return False
    sides = text.split("=")
    curve = len(sides) == 2 and (sides[1].strip() == "0" or {"x", "y"} <= set(text))
    return bool(curve or _SYSTEM.search(text))


def has_prose(text: str) -> bool:
    return bool(_WORD.search(soften(text)))


def has_math(text: str) -> bool:
    return bool(_MATH.search(text))


def predicate(text: str) -> str:
    """What follows the last `is`, `gives`, `It's` and the like; the text where nothing does."""
    return _COPULA.split(text)[-1]


def without_ending_note(text: str) -> str:
    """A reply without the brackets that explain its last number: `a total of 5 (3 + 2).`"""
    tail = text[-MAX_CHARS:]
    found = _ENDING_NOTE.search(tail)
    if found is None or not (_SUM.fullmatch(found[2]) or split_note(found[0])[1]):
        return text
    return text[: -len(tail)] + tail[: found.end(1)]


def _without_note(text: str) -> str:
    """The answer where brackets explain it: words, or after a number a sum or the same value again."""
    found = _BRACKETED.fullmatch(text)
    if found is None:
        return text
    head, note = found["head"], found["note"]
    quantity, restated = read_quantity(plain(head)), read_quantity(plain(note))
    if quantity and restated and quantity.value == restated.value:
        return head
    if quantity and (_SUM.fullmatch(note) or split_note(f"5 ({note})")[1]):
        unit = f" {note}" if not quantity.unit and leading_unit([note]) else ""
        return head + unit
    return head if is_formula(head) and split_note(f"5 ({note})")[1] and has_prose(note) else text


def _without_prose(text: str) -> str:
    """The number, with its unit where that is a known one, of a number with more than two words after it."""
    fenced = FENCE.match(text)
    end = fenced.end() if fenced and read_quantity(plain(fenced[0])) else number_end(text)
    found = _PROSE.fullmatch(text, end) if end else None
    if found is None:
        return text
    words = found["words"].split()
    first, second = (word.lower() for word in [*words, "", ""][:2])
    plain_words = all(map(_PROSE_WORD.fullmatch, words)) and not has_number_word(found["words"])
    if len(words) < _MIN_PROSE or not plain_words or first in _JOINERS or (first in _COMPARED and second == "than"):
        return text
    bare = [word.rstrip(".,;:!?") for word in words]
    used = 0 if found["comma"] else leading_unit(bare)
    if not used and len(first) == 1 and first != "a":
        return text  # a variable
    number = text[:end].strip("$ ") if fenced or "$" in found["marks"] else text[:end].strip()
    return " ".join([number, *bare[:used]])


def concise(statement: str) -> str:
    """The statement without what explains a complete answer in it."""
    if len(statement) > MAX_CHARS:
        return statement
    return _without_prose(_without_note(statement))
