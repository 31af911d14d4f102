"""A model's reply: the part that counts, and the places in it that state an answer."""

import re
from collections.abc import Iterator
from itertools import islice

from search.answers.latex import FENCE, boxes

MAX_STATEMENTS = 50  # looked at, from the end of the reply

_THINK_TAG = re.compile(r"(</?think>)", re.IGNORECASE)
_PHRASE = re.compile(
    r"\banswers?\b[*_]*"
    r"(?:[^\n.:=?]{0,60}?\b(?:is|are|was|be|equals?)\b(?!\s+(?:is|are|be)\b)[ \t]*:?|[^\n.:=?]{0,40}?[:=])"
    r"|^[#*_\s]*(?:final\s+)?answer[*_\s]*$"
    r"|(?:答案|答え|정답)[ \t]*(?:是|为|為|は|은)?[ \t]*[:：]?"
    r"|\b(?:respuesta|risposta|resposta|réponse|antwort|ответ)\b[^\n.:=?]{0,40}?(?:\b(?:es|est|è|é|ist|lautet)\b|:)",
    re.IGNORECASE | re.MULTILINE,
)
_A_MARK = re.compile(r"(?:^[ \t>*_]*|(?<=\?)[ \t]+)A[*_]*[:：][*_]*", re.MULTILINE)  # of `Q: ... A: ...`
_B_MARK = re.compile(r"(?<![A-Za-z])\(?B[*_]*[:：.)]")  # then `A:` is an option
_HASHES = re.compile(r"####[ \t]*")
_HEADING = re.compile(r"\W*(?!(?:yes|no|true|false)\b)[A-Z][A-Za-z]{2,}")
"""What may be the heading of a part as well as an answer."""
_TO_DO = re.compile(r"\bto\s+\w+\s+(?:to\s+)?(?:(?:the|an|our|your)\s+)?(?:final\s+|correct\s+)?$", re.IGNORECASE)
"""`To find the answer: first, ...`"""
_TO_DO_CHARS = 60
_NAMED = re.compile(r"\b(?:final\s+)?answer\b\s*(?:is\s*:?|(?P<colon>:))\s*\**\s*(?=[^\s*:])", re.IGNORECASE)
_SENTENCE_END = re.compile(
    r"(?<!\bSt)(?<!\bMt)(?<!\bDr)(?<!\bMr)(?<!\bMs)(?<!\bMrs)[.!?](?=[*_\"']*(?:\s+[A-Z\\]|\s*$))"
    r"|[。！？]|です|,?\s(?:because|since)\s|,\s(?:which|so|as)\s|\.\s+I hope"
)
_FACTORIAL = re.compile(r"[\s*_]*(?:\d{1,3}|[a-z])![\s*_]*")
"""Behind `Answer:` no exclamation."""
_FENCED = re.compile(rf"{FENCE.pattern}|\\\((.+?)\\\)")
_LEAD = re.compile(
    r"(?:that|therefore|thus|hence|simply|just|clearly|indeed|actually|exactly|equal to|given by)[,:]?\s+",
    re.IGNORECASE,
)
_EMPHASIS = " \t\r\n*_`:"
_FENCE_LINE = re.compile(r"[\s*_:]*(?:\\[\[\]]|\$\$|```\w*|\\(?:begin|end)\{\w+\*?\})?[\s*_`:]*")
"""A line that only opens or closes what other lines hold."""
_BULLET = re.compile(r"\s*(?:[-*•+]|\d{1,2}[.)])\s+")
_NOT_STATED = re.compile(
    r"(?:not|as follows|in the)\b|(?:(?:in)?correct|right|wrong|below|above|unclear|unknown|obvious)\W*$",
    re.IGNORECASE,
)


def visible(text: str) -> str | None:
    """What is outside `<think>...</think>`; what is inside, where that is all there is.

    None where thinking was cut off: an unclosed tag with nothing before it states nothing yet.
    """
    outside: list[str] = []
    inside: list[str] = []
    thinking = False
    for piece in _THINK_TAG.split(text):
        tag = piece.lower()
        if tag == "<think>":
            thinking = True
        elif tag == "</think>":
            if not thinking:  # the template opened it in the prompt
                inside, outside = inside + outside, []
            thinking = False
        else:
            (inside if thinking else outside).append(piece)
    shown = "".join(outside).strip()
    if shown or thinking:
        return shown or None
    return "".join(inside).strip() or None


def tidy(text: str) -> str:
    """A stated answer without emphasis, lead-in words and closing full stop."""
    text = text.strip(_EMPHASIS)
    fenced = _FENCED.match(text)
    if fenced and not re.match(r"\s*[\w(\\$%-]", text[fenced.end() :]):
        return (fenced[1] or fenced[2] or fenced[3]).strip()
    lead = _LEAD.match(text)
    text = text[lead.end() :] if lead else text
    return text.strip(_EMPHASIS).rstrip(".,;").strip(_EMPHASIS)


def _sentence(text: str, start: int) -> str:
    """The rest of the line, or the next line that says something where it does not, up to its first sentence's end."""
    end, begun = text.find("\n", start), start
    while end >= 0 and _FENCE_LINE.fullmatch(text, start, end):
        start, end = end + 1, text.find("\n", end + 1)
    line = text[start:] if end < 0 else text[start:end]
    if start > begun and (bullet := _BULLET.match(line)):
        line = line[bullet.end() :]
    stop = _SENTENCE_END.search(line)
    if stop and text[:begun].rstrip("*_ ").endswith(":") and _FACTORIAL.fullmatch(line):
        return line
    return line[: stop.start()] if stop else line


def statements(text: str, verbatim: bool = False, options: bool = False) -> Iterator[str]:
    """The answers that the text states in so many words, the last first: boxes, `####`, `the answer is`.

    So does `A:` at the start of a line, unless it is one of several options, or `options` says that it may be. `####`
    before what may be a heading counts where nothing else does.
    """
    places: list[tuple[int, str | None, int]] = [(at, inner, at) for at, inner in boxes(text)]
    places += [(mark.start(), None, mark.end()) for mark in _HASHES.finditer(text)]
    places += [(phrase.start(), None, phrase.end()) for phrase in _PHRASE.finditer(text)]
    if not options and not _B_MARK.search(text):
        places += [(mark.start(), None, mark.end()) for mark in _A_MARK.finditer(text)]
    last_first = sorted(places, key=lambda place: place[0], reverse=True)[:MAX_STATEMENTS]
    for _, inner, start in sorted(last_first, key=lambda place: _heads(text, place[0], place[2])):
        value = inner if inner is not None else _sentence(text, start)
        stated = value.strip() if verbatim else tidy(value)
        if stated and (inner is not None or not _NOT_STATED.match(stated)):
            yield stated


def _heads(text: str, at: int, start: int) -> bool:
    return text.startswith("####", at) and _HEADING.match(text, start) is not None


def names_answer(text: str) -> bool:
    """Whether a step names its answer: less is taken for it than in a whole reply, where the last mention counts."""
    if boxes(text):
        return True
    marks = [m for m in _HASHES.finditer(text) if not text[text.rfind("\n", 0, m.start()) + 1 : m.start()].strip()]
    if any(text[mark.end() :].strip() and not _heads(text, mark.start(), mark.end()) for mark in marks):
        return True
    for named in islice(_NAMED.finditer(text), MAX_STATEMENTS):
        stated = tidy(_sentence(text, named.end()))
        ahead = named["colon"] and _TO_DO.search(text[max(named.start() - _TO_DO_CHARS, 0) : named.start()])
        if stated and not ahead and not _NOT_STATED.match(stated):
            return True
    return False


def last_line(text: str) -> str:
    """The last line that says something."""
    text = text.rstrip()
    while True:
        before, _, line = text.rpartition("\n")
        if not before or not _FENCE_LINE.fullmatch(line):
            return line.strip()
        text = before.rstrip()
