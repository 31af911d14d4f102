"""The last answer that a reply states."""

import re
from collections.abc import Callable

from search.answers import reply
from search.answers.display import inlined
from search.answers.latex import FENCE, MAX_CHARS, boxes, plain, soften
from search.answers.quantity import head_pattern, number_end, read_head, read_quantity
from search.answers.structure import read_letter
from search.answers.trim import concise, has_math, has_prose, is_equation, is_formula, predicate, without_ending_note
from search.answers.words import in_digits

KINDS = ("auto", "number", "choice", "math", "text", "exact")

_HEAD = head_pattern(".,'_")
_NUMBER = re.compile(
    rf"""(?P<sign>(?<![\w)\]}}.])(?:-|(?i:negative)\s+))?(?P<currency>[$€£¥₹]\s?)?
    (?<![A-Za-z_^\d])(?<!\d[.,:])(?<!\^\{{)(?<!_\{{)(?<!\^-)(?<!\{{-)
    (?:(?P<pair>\d+(?:\.\d+)?(?:(?::|[ ]:[ ])\d+(?:\.\d+)?){{1,3}}(?:\s?(?:[AaPp][Mm]\b|[ap]\.m\b\.?))?)|{_HEAD})
    (?!\.?\d|\s*\^)
    (?P<scale>\s(?:hundred|thousand|million|billion|trillion)\b|(?(currency)(?:[kKmMbB]|bn)\b|(?!)))?
    (?P<percent>\s?\\?%|\s+percent\b)?""",
    re.VERBOSE,
)
_LEADING_SIGN = re.compile(r"^\s*(?:[-\u2012\u2013]|(?:negative|minus)\b)\s*(?=[$€£¥₹\d.\\])", re.IGNORECASE)
_GROUPS = re.compile(r"(?<![\w.,/])[1-9]\d{0,2}(?: \d{3})+(?![\w-]|,\d)")
_POWER = re.compile(r"-?\d+(?:\^|\*\*)(?:\{\s*-?\d+\s*\}|-?\d+)")
_MAX_NUMBER_WORDS = 6  # `minus twenty-one thousand dollars`; more is a sentence
_LABEL = re.compile(
    r"(?:step|eq|equation|part|case|problem|question|figure|table|line|example)\.?\s*\(?$", re.IGNORECASE
)
_ENUMERATOR = re.compile(r"^\s*\d{1,2}[.)](?=\s+\S)", re.MULTILINE)
_CHOICE = re.compile(
    r"(?i:\b(?:option|choice))\s*:?\s*\(?([A-Ja-j])\b|\(([A-J])\)|^\W*([A-J])(?:\W*$|[.):])|\*\*\(?([A-J])\)?[.:]?\*\*"
    r"|\b(?:is|be|choose|pick|select)\s+([A-J])\s*(?:[.,;!]|$)",
    re.MULTILINE,
)
_CHOICE_FIRST = re.compile(r"\(?([A-HJ])\b(?!['\w])")
_SEVERAL = re.compile(
    r"\(?\b[A-HJ]\b\)?(?:,\s{0,3}\(?[A-HJ]\b\)?){0,9}"
    r"(?:,?\s{0,3}(?:and|or|&|/)\s{0,3}\(?[A-J]\b\)?|(?:,\s{0,3}\(?[A-HJ]\b\)?)(?=\W{0,9}$))"
)
_LETTER_AFTER_A = re.compile(r"A[*_]*:\W*([A-J])\W*")
_EQUATED = re.compile(r"\s=\s+")
_VERDICT = re.compile(r"\W*(yes|no|true|false)\W*", re.IGNORECASE)
_Reader = Callable[[str], str | None]


def extract(text: str, kind: str = "auto") -> str | None:
    """The last answer stated in a reply, or None.

    `number`: the numeral, `28%` with its sign; a power or a number in words where that is all that is stated.
    `choice`: a letter A-J; None where several are stated at once (`A and C`). `math`: an expression. `text`: the
    words, else the last line. `exact`: the stated text untouched, else the whole reply. `auto`: any statement, else a
    closing expression, letter or verdict, else the last number. `auto` and `math` leave out what follows a complete
    answer: a note in brackets, prose after a number. Thinking inside tags does not count (see `reply.visible`).
    ValueError for an unknown kind.
    """
    return _read(text, kind, closing=True)


def meant(text: str, kind: str = "auto") -> str:
    """The answer that a reference is, or states as a reply does; ValueError for an unknown kind.

    A line that states none in so many words is the answer itself: `x^2 + y^2 = 25`. Of the kinds `number` and `choice`
    what a reply would be read as is taken from it, since answers of these kinds are read so.
    """
    closing = kind in ("number", "choice") or "\n" in text.strip()
    return _read(text, kind, closing) or text.strip()


def _read(text: str, kind: str, closing: bool) -> str | None:
    """The last stated answer, or, if `closing`, what the text ends in where it states none."""
    if kind not in KINDS:
        raise ValueError(f"answer kind must be one of {', '.join(KINDS)}; got {kind!r}")
    shown = reply.visible(text)
    if shown is None:
        return None
    if kind != "exact":
        shown = inlined(shown)
    stated, fallback = _READERS[kind]
    for statement in reply.statements(shown, verbatim=kind == "exact", options=kind == "choice"):
        found = stated(statement)
        if found is not None:
            return found or None
    return fallback(shown) if closing else None


def _last_number(text: str, prose: bool = True) -> str | None:
    """The last numeral; in prose not one that only counts steps or list items."""
    text = soften(without_ending_note(text) if prose else text)
    if prose and "\n" in text:
        text = _ENUMERATOR.sub("", text)
    last = None
    for found in _NUMBER.finditer(text):
        if not (prose and _LABEL.search(text[max(0, found.start() - 12) : found.start()])):
            last = found
    return _numeral(last) if last else None


def _numeral(found: re.Match[str]) -> str:
    """The matched numeral without currency and closing marks, but `$2k` whole; of a malformed one the last part."""
    sign = "-" if found["sign"] else ""
    bare = found[0][len(found["sign"] or "") + len(found["currency"] or "") :].rstrip(".")
    if found["pair"]:
        return sign + found["pair"]
    if found["currency"] and found["scale"] and not found["scale"][0].isspace():
        return found[0]
    if len(bare) <= MAX_CHARS and read_head(found) is None:
        return re.split(r"[,'_/\s]|\.(?=.*\.)", bare)[-1] or bare
    return sign + bare


def _stated_number(statement: str) -> str | None:
    """The number of a statement: after its last `=`; the one it opens with; else its last; a power or words alone."""
    value = statement.rpartition("=")[2] if "=" in statement else statement
    found = boxes(value)
    value = soften(found[-1][1] if found else value).strip("$ ").replace("\\$", "$")
    value = _GROUPS.sub(lambda groups: groups[0].replace(" ", ""), _LEADING_SIGN.sub("-", value))
    if _POWER.fullmatch(value):
        return value
    value = in_digits(value) if len(value.split()) <= _MAX_NUMBER_WORDS else value
    first = _NUMBER.match(value)
    return _numeral(first) if first else _last_number(value, prose=False)


def _stated_choice(statement: str) -> str | None:
    """The letter of a statement; empty where it states several."""
    text = plain(statement)
    if _SEVERAL.match(text):
        return ""
    letter = read_letter(text)
    if letter is None:
        first = _CHOICE_FIRST.match(text)
        letter = first[1] if first else _last_choice(text)
    return letter if letter and letter in "ABCDEFGHIJ" else None


def _last_choice(text: str) -> str | None:
    found = _CHOICE.findall(_SEVERAL.sub(" ", text))
    return str(max(found[-1])).upper() if found else None


def _closing_choice(text: str) -> str | None:
    """The letter that is the whole last line, else the last marked letter."""
    line = reply.last_line(text)
    answered = _LETTER_AFTER_A.fullmatch(line)
    letter = answered[1] if answered else read_letter(plain(line)) if len(line) <= MAX_CHARS else None
    return letter if letter and letter in "ABCDEFGHIJ" else _last_choice(text)


def _stated_math(statement: str) -> str | None:
    return concise(statement) if has_math(soften(statement[:MAX_CHARS])) else None


def _stated_any(statement: str) -> str | None:
    """The statement; of a sentence that ends in `is <number or formula>`, that; without what explains it."""
    statement = concise(statement)
    if is_equation(statement):
        return statement
    tail = _EQUATED.split(statement)[-1]
    if tail == statement and not number_end(statement[:MAX_CHARS]):
        tail = predicate(statement)
    if tail != statement and len(tail) <= MAX_CHARS and (read_quantity(plain(tail)) or is_formula(tail)):
        return concise(tail)
    return statement


def _closing_math(text: str) -> str | None:
    """The expression on the last line: its last inline formula or the whole line, from its last `=` on."""
    raw = reply.last_line(text)
    if len(raw) > MAX_CHARS:
        return None
    line = without_ending_note(reply.tidy(raw))
    inline = [first or second for first, second in FENCE.findall(line)]
    formula = inline[-1].strip() if inline and has_math(inline[-1]) else line
    if is_equation(formula):
        return formula
    if "=" in formula:
        formula = formula.rpartition("=")[2].strip().rstrip(".")
    listed = ", " in formula and has_prose(raw) and not inline
    tail = concise(predicate(formula).strip())
    if tail != formula and is_formula(tail) and not (listed and read_quantity(plain(tail))):
        return tail
    if not formula or listed:
        return None
    return tail if is_formula(tail) or read_quantity(plain(tail)) else None


def _closing_any(text: str) -> str | None:
    line = reply.tidy(reply.last_line(text))
    if "\n" not in text.strip() and len(line) <= MAX_CHARS and read_letter(plain(line)):
        return line
    if _VERDICT.fullmatch(line):
        return line
    if not any(map(str.isdigit, line)) and _last_choice(line):
        return _last_choice(line)
    return _closing_math(text) or _last_number(text)


def _closing_text(text: str) -> str | None:
    return reply.tidy(reply.last_line(text)) or None


def _whole(text: str) -> str | None:
    return text.strip() or None


_READERS: dict[str, tuple[_Reader, _Reader]] = {
    "auto": (_stated_any, _closing_any),
    "number": (_stated_number, _last_number),
    "choice": (_stated_choice, _closing_choice),
    "math": (_stated_math, lambda text: _closing_math(text) or _last_number(text)),
    "text": (_whole, _closing_text),
    "exact": (_whole, _whole),
}
