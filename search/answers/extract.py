"""The last answer that a reply states."""

import re
from collections.abc import Callable

from search.answers import reply
from search.answers.latex import MAX_CHARS, boxes, plain, soften
from search.answers.quantity import head_pattern, read_head, read_quantity
from search.answers.structure import read_letter

KINDS = ("auto", "number", "choice", "math", "text", "exact")

_HEAD = head_pattern(".,'_")
_NUMBER = re.compile(
    rf"""(?P<sign>(?<![\w)\]}}.])-)?(?P<currency>[$€£¥₹]\s?)?
    (?<![A-Za-z_^\d])(?<!\d[.,])(?<!\^\{{)(?<!_\{{)(?<!\^-)(?<!\{{-)
    {_HEAD}(?!\.?\d|\s*\^)(?P<percent>\s?\\?%|\s+percent\b)?""",
    re.VERBOSE,
)
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
_COPULA = re.compile(r"\s(?:is|are|equals|=)\s+")
_INLINE = re.compile(r"\$([^$\n]+)\$")
_MATH = re.compile(r"[\d\\^=+*/<>|∞π√]|^[A-Za-z]$")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_VERDICT = re.compile(r"\W*(yes|no|true|false)\W*", re.IGNORECASE)
_Reader = Callable[[str], str | None]


def extract(text: str, kind: str = "auto") -> str | None:
    """The last answer stated in a reply, or None.

    `number`: the numeral, `28%` with its sign. `choice`: a letter A-J. `math`: an expression. `text`: the
    words, else the last line. `exact`: the stated text untouched, else the whole reply. `auto`: any
    statement, else a closing expression, letter or verdict, else the last number. Thinking inside tags does
    not count (see `reply.visible`). ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"answer kind must be one of {', '.join(KINDS)}; got {kind!r}")
    shown = reply.visible(text)
    if shown is None:
        return None
    stated, fallback = _READERS[kind]
    for statement in reply.statements(shown, verbatim=kind == "exact"):
        found = stated(statement)
        if found:
            return found
    return fallback(shown)


def _last_number(text: str, prose: bool = True) -> str | None:
    """The last numeral; in prose not one that only counts steps or list items."""
    text = soften(text)
    if prose and "\n" in text:
        text = _ENUMERATOR.sub("", text)
    last = None
    for found in _NUMBER.finditer(text):
        if not (prose and _LABEL.search(text[max(0, found.start() - 12) : found.start()])):
            last = found
    return _numeral(last) if last else None


def _numeral(found: re.Match[str]) -> str:
    """The matched numeral without currency and closing marks; of one that is malformed, the last part."""
    sign = "-" if found["sign"] else ""
    bare = found[0][len(sign) + len(found["currency"] or "") :].rstrip(".")
    if len(bare) <= MAX_CHARS and read_head(found) is None:
        return re.split(r"[,'_/\s]|\.(?=.*\.)", bare)[-1] or bare
    return sign + bare


def _stated_number(statement: str) -> str | None:
    """The number of a statement: after its last `=`; the one it opens with; else its last."""
    value = statement.rpartition("=")[2] if "=" in statement else statement
    found = boxes(value)
    value = soften(found[-1][1] if found else value).strip("$ ")
    first = _NUMBER.match(value)
    return _numeral(first) if first else _last_number(value, prose=False)


def _stated_choice(statement: str) -> str | None:
    text = plain(statement)
    letter = read_letter(text)
    if letter is None:
        first = _CHOICE_FIRST.match(text)
        letter = first[1] if first else _last_choice(text)
    return letter if letter and letter in "ABCDEFGHIJ" else None


def _last_choice(text: str) -> str | None:
    found = _CHOICE.findall(text)
    return str(max(found[-1])).upper() if found else None


def _closing_choice(text: str) -> str | None:
    """The letter that is the whole last line, else the last marked letter."""
    line = reply.last_line(text)
    letter = read_letter(plain(line)) if len(line) <= MAX_CHARS else None
    return letter if letter and letter in "ABCDEFGHIJ" else _last_choice(text)


def _stated_math(statement: str) -> str | None:
    return statement if _MATH.search(soften(statement[:MAX_CHARS])) else None


def _stated_any(statement: str) -> str | None:
    """The statement; of a sentence that ends in `is <number>`, the number."""
    tail = _COPULA.split(statement)[-1]
    if tail != statement and len(tail) <= MAX_CHARS and read_quantity(plain(tail)):
        return tail
    return statement


def _closing_math(text: str) -> str | None:
    """The expression on the last line: its last inline formula or the whole line, from its last `=` on."""
    raw = reply.last_line(text)
    if len(raw) > MAX_CHARS:
        return None
    line = reply.tidy(raw)
    inline = _INLINE.findall(line)
    formula = inline[-1].strip() if inline and _MATH.search(inline[-1]) else line
    if "=" in formula:
        formula = formula.rpartition("=")[2].strip().rstrip(".")
    prose = _WORD.search(soften(raw)) and not inline
    if not formula or (prose and ", " in formula):
        return None
    if _MATH.search(formula) and not _WORD.search(soften(formula)):
        return formula
    return formula if read_quantity(plain(formula)) else None


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
