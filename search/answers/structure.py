"""The outer form of an answer: choice letter, named value, inequality, collection, plain text."""

import re
from dataclasses import dataclass

MAX_ITEMS = 32
_OPEN, _CLOSE = "([{<", ")]}>"

_LETTER = re.compile(r"(?:(?i:option|choice)\s*:?\s*)?[(\[]?\s*([A-Za-z])\s*(?:[)\]]\s*)?[.:]?")
_LETTER_AND_TEXT = re.compile(r"(?:(?i:option|choice)\s+\(?([A-J])\)?[:.)]\s|\(?([A-J])\)\s*[.:]?\s+\w|([A-J]):\s+\w)")
_OTHER_LETTER = re.compile(r"\([A-Ja-j]\)|\b[A-J]:\s")
_NAME = r"(?:[A-Za-z]{1,20}(?:_\{?\w{1,8}\}?)?|\\[a-z]{2,10}|[A-Za-z]?\(\s*[A-Za-z](?:\s*,\s*[A-Za-z])*\s*\))"
_NAMED = re.compile(rf"({_NAME})\s*(?:=|:=|\\in(?![a-z]))\s*(?=\S)")
_NUMERIC_SIDE = re.compile(r"(?:[\d\s.,+\-*/^(){}%$!]|\\(?:frac|times|cdot|div)(?![a-z]))+")
_EQUALS = re.compile(r"(?<![<>!:])=")
_ORDER = re.compile(r"\s*(<=|>=|<|>|\\(?:leq?|geq?|lt|gt)(?![A-Za-z])(?:slant)?)\s*")
_SIMPLE = re.compile(r"[A-Za-z](?:_\{?\w\}?)?|\\(?:theta|alpha|beta|lambda|mu)")
_INFINITY = re.compile(r"(?:\+\s*|positive\s+)?(-\s*|(?:minus|negative)\s+)?(?:\\infty|inf(?:inity)?)", re.IGNORECASE)
_ARTICLE = re.compile(r"(?:the|an?)\s+(?!and\b|or\b)(?=[A-Za-z]{3})", re.IGNORECASE)
_GROUPED = re.compile(r"[^,]*(?<!\d)[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?[^,\d]*")  # one numeral, not a list
_WORD_SEPARATOR = re.compile(r"(?<!\s)(?:\s*,)?\s+(?:and|or)\s+")
_OR = re.compile(r"(?:(?<!\s),)?\s+or\s+")
_INTERVAL = re.compile(r"[(\[][^()\[\]]+[)\]]")
_TOKEN = re.compile(r"\\[{}]|\\(?:langle|rangle|lbrace|rbrace)(?![A-Za-z])|\d,\d{3}(?!\d)|[^\\]|\\", re.DOTALL)
_BRACKETS = {
    "\\{": "{", "\\}": "}", "\\lbrace": "{", "\\rbrace": "}", "\\langle": "<", "\\rangle": ">",
    "(": "(", ")": ")", "[": "[", "]": "]", "{": "{", "}": "}",
}  # fmt: skip
_FUNCTION_NAME = r"sqrt|pi|(?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log|exp|min|max"
_FUNCTION = re.compile(rf"(?<![A-Za-z])(?:{_FUNCTION_NAME})(?![A-Za-z])")
_LETTERS = re.compile(r"[^\W\d_]+")
_FORMULA = re.compile(
    rf"[*+^=<>|_](?=\s*[\w({{\\.-])|(?<![A-Za-z])(?:[A-Za-z]|{_FUNCTION_NAME})\("
    r"|(?<![A-Za-z\d])\d+(?!(?i:st|nd|rd|th)(?![A-Za-z]))[A-Za-z](?!\d)"
)
_DIFFERENCE = re.compile(r"[-/](?=\s*[\w({])")
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])")


@dataclass(frozen=True)
class Collection:
    """Items between brackets; `brackets` is `{}` where order does not count."""

    brackets: str
    items: tuple[str, ...]

    @property
    def ordered(self) -> bool:
        return self.brackets != "{}"


def read_letter(text: str) -> str | None:
    """The letter of a multiple-choice answer: `(B)`, `b.`, `option B`, `B) because`."""
    alone = _LETTER.fullmatch(text)
    if alone:
        return alone[1].upper()
    found = _LETTER_AND_TEXT.match(text)
    if found and not _OTHER_LETTER.search(text[found.end() :]):
        return found[1] or found[2] or found[3]
    return None


def _has_variables(text: str) -> bool:
    """Whether case tells letters apart: in `R - r`, `2R`, `f(X)`; not in `No-go`, `3RD`, `CO2`, `A+`, `N/A`."""
    longest = max(map(len, _LETTERS.findall(_FUNCTION.sub(" ", text))), default=0)
    if longest < 2 and _DIFFERENCE.search(text):
        return text.casefold() != "n/a"
    return longest <= 2 and bool(_FORMULA.search(text))


def text_form(text: str) -> str:
    """Case, spacing and a leading article off, except case of variables and the space between two words."""
    infinity = _INFINITY.fullmatch(text)
    if infinity:
        return ("-" if infinity[1] else "") + "\\infty"
    text = _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text
    words = " ".join(text.split()).rstrip(" .,;:")
    spaced = re.sub(r"(?<!\w) | (?!\w)", "", words) or text.strip()
    return spaced if "\\" in spaced or _has_variables(spaced) else spaced.casefold()


def _variable(name: str) -> str:
    return name if len(name) <= 2 else text_form(name)


def _interval(sides: list[str], relations: list[str]) -> tuple[str, str] | None:
    """(name, interval) that a chain around one variable states: `1 < x \\le 2` -> `x`, `(1,2]`."""
    if all(relation[0] == ">" for relation in relations):
        sides, relations = sides[::-1], ["<" + relation[1:] for relation in relations[::-1]]
    if not all(relation[0] == "<" for relation in relations):
        return None
    closed = ["=" in relation for relation in relations]
    if len(sides) == 2 and _SIMPLE.fullmatch(sides[0]):
        return sides[0], f"(-\\infty,{sides[1]}{')]'[closed[0]]}"
    if len(sides) == 2 and _SIMPLE.fullmatch(sides[1]):
        return sides[1], f"{'(['[closed[0]]}{sides[0]},\\infty)"
    if len(sides) == 3 and _SIMPLE.fullmatch(sides[1]):
        return sides[1], f"{'(['[closed[0]]}{sides[0]},{sides[2]}{')]'[closed[1]]}"
    return None


def _plain_relation(relation: str) -> str:
    if relation.startswith("\\"):
        return ("<" if relation[1] == "l" else ">") + ("=" if relation[2] == "e" else "")
    return relation


def split_name(text: str) -> tuple[str | None, str]:
    """(name, value) of `x = 5`, `x \\in S` or `x > 3`; (None, text) where no variable is named.

    A left side of numbers only is a calculation and is dropped: `6 * 7 = 42` is 42.
    """
    named = _NAMED.match(text)
    value = text[named.end() :] if named else ""
    one = "," not in value or value[0] in "([{\\" or _GROUPED.fullmatch(value)
    if named and one and not _EQUALS.search(value):
        return _variable(named[1]), value
    sides = _EQUALS.split(text)
    if len(sides) > 1 and all(_NUMERIC_SIDE.fullmatch(side) for side in sides[:-1]) and sides[-1].strip():
        return None, sides[-1].strip()
    parts = _ORDER.split(text.strip())
    if len(parts) in (3, 5) and "," not in text and all(parts):
        stated = _interval(parts[::2], [_plain_relation(relation) for relation in parts[1::2]])
        return (_variable(stated[0]), stated[1]) if stated else (None, text)
    return None, text


def as_union(text: str) -> str:
    """Intervals that a variable is in, one or another, as their union: `x < 1 or x > 4`; other texts as they are."""
    parts = _OR.split(text)
    if not 2 <= len(parts) <= MAX_ITEMS:
        return text
    named = [split_name(part) for part in parts]
    apart = all(name and _INTERVAL.fullmatch(value) for name, value in named)
    if not apart or len({name for name, _ in named}) > 1:
        return text
    return "\\cup ".join(value for _, value in named)


def _split(text: str) -> list[str] | None:
    """Split at commas and semicolons outside brackets; None where brackets do not balance."""
    grouped = ", " in text or ";" in text  # then `1,000` inside is one number
    items, depth = [""], 0
    for token in _TOKEN.findall(text):
        mark = _BRACKETS.get(token)
        depth += 0 if mark is None else 1 if mark in _OPEN else -1
        if depth < 0:
            return None
        if depth == 0 and token in (",", ";"):
            items.append("")
        elif depth == 0 and not grouped and len(token) > 3 and token[1] == ",":
            items[-1] += token[0]
            items.append(token[2:])
        else:
            items[-1] += token
    return [item.strip() for item in items] if depth == 0 else None


def _bracketed(text: str) -> tuple[str, str] | None:
    """(brackets, inside) where the text opens and closes with brackets; `]a,b[` is `(a,b)`."""
    tokens = _TOKEN.findall(text)
    if len(tokens) < 3:
        return None
    first, last = _BRACKETS.get(tokens[0], " "), _BRACKETS.get(tokens[-1], " ")
    first, last = first.replace("]", "("), last.replace("[", ")")
    if first not in _OPEN or last not in _CLOSE:
        return None
    if (first in "{<" or last in "}>") and _CLOSE[_OPEN.index(first)] != last:
        return None
    return first + last, text[len(tokens[0]) : len(text) - len(tokens[-1])]


def _is_solution(item: str) -> bool:
    """Items of a list without brackets are values, not words."""
    return any(map(str.isdigit, item)) or "\\" in item or len(item) <= 2


def read_collection(text: str) -> Collection | None:
    """The tuple, interval, set or list that a plain answer states. A list without brackets is a set."""
    bracketed = _bracketed(text)
    if bracketed:
        inside = _split(bracketed[1])
        if inside is not None and all(inside) and (len(inside) > 1 or bracketed[0] == "{}"):
            items = tuple(text_form(item) if _INFINITY.fullmatch(item) else item for item in inside)
            return Collection(bracketed[0], items) if len(items) <= MAX_ITEMS else None
    split = None if _GROUPED.fullmatch(text) else _split(_WORD_SEPARATOR.sub(", ", text))
    if split and len(split) > 1 and all(item and _is_solution(item) for item in split):
        return Collection("{}", tuple(split)) if len(split) <= MAX_ITEMS else None
    if len(_PLUS_MINUS.findall(text)) == 1:
        name, value = split_name(text)
        signs = (_PLUS_MINUS.sub("+", value).lstrip("+ "), _PLUS_MINUS.sub("-", value))
        return Collection("{}", tuple(f"{name}={sign}" if name else sign for sign in signs))
    return None
