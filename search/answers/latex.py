"""LaTeX and Markdown dressing: what is taken off before an answer is read."""

import re
from functools import lru_cache

from search.answers.glyphs import fold

MAX_CHARS = 1000  # longer answers are compared as text

_BOX_TOKEN = re.compile(r"\\(?:boxed|fbox)\s*\{|\\[\s\S]|[{}]")
_BARE_BOX = re.compile(r"\\boxed\s+([^\s{}$]+)")
_WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|normal)?|math(?:rm|bf|it|sf|tt)|operatorname|mbox|hbox|emph|bm|boldsymbol)"
    r"\s*\{([^{}]*)\}"
)
_GROUPED_MARK = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:\{,\}\d{3})+(?!\d)")
_SPACED_GROUPS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:(?:\\[,;: ]|~)\d{3})+(?!\d)")
_DEGREE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|°")
_TRIG_DEGREE = re.compile(
    r"(\\(?:sin|cos|tan|cot|sec|csc))\s*[({]?\s*(\d{1,9}(?:\.\d{1,9})?)\s*(?:\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z]))|°)\s*[)}]?"
)
_EMPTY_SET = re.compile(r"\\varnothing(?![A-Za-z])")
_SIZING = re.compile(r"\\(?:left|right|[bB]ig+[lr]?|displaystyle|textstyle)(?![A-Za-z])\s*")
_FRAC_NAME = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_FRAC_FIRST = re.compile(r"\\frac\s*(\d)")
_FRAC_SECOND = re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\d)")
_NEGATIVE_SPACE = re.compile(r"(?<!\\)\\!\s*")
_SPACE = re.compile(r"(?<!\\)\\(?:[,;: ]|q?quad(?![A-Za-z]))|~")
_SPACED_POWER = re.compile(r"(?<=\S)[ ]{1,3}\^")
_ESCAPED = re.compile(r"(?<!\\)\\([$%#&_])")
_MATH_FENCE = re.compile(r"(?<!\\)\\[()\[\]]|\$\$")
FENCE = re.compile(
    r"(?<!\\)\$(?!\s)((?:\\.|[^$\\\n])+)(?<!\s)\$(?!\d)|(?<!\\)\$[ \t]+((?:\\.|[^$\\\n])+)[ \t]\$(?![ \t]*\d)"
)  # `$x$`, as in Pandoc: no blank inside, no digit after; `$ x $` too
_BRACED = re.compile(r"\{([^{},]*)\}")


def boxes(text: str) -> list[tuple[int, str]]:
    """(position, content) of every outermost closed `\\boxed{...}`, in one pass."""
    found: list[tuple[int, str]] = []
    depths: list[tuple[int, int] | None] = []  # an open brace; (start, content start) where it opens a box
    for token in _BOX_TOKEN.finditer(text):
        if token[0] == "{":
            depths.append(None)
        elif token[0] == "}":
            opened = depths.pop() if depths else None
            if opened is not None:
                while found and found[-1][0] > opened[0]:
                    found.pop()
                found.append((opened[0], text[opened[1] : token.start()]))
        elif token[0].endswith("{") and len(token[0]) > 2:
            depths.append((token.start(), token.end()))
    found += [(bare.start(), bare[1]) for bare in _BARE_BOX.finditer(text)]
    return sorted(found)


def soften(text: str) -> str:
    """The text with LaTeX spacing, wrappers, digit grouping and fraction variants in one plain spelling."""
    text = _TRIG_DEGREE.sub(r"\1(\\frac{\2\\pi}{180})", _EMPTY_SET.sub(r"\\emptyset", fold(text)))
    text = _NEGATIVE_SPACE.sub("", _DEGREE.sub(r" degree ", text))
    text = _GROUPED_MARK.sub(lambda found: found[0].replace("{,}", ""), text).replace("{,}", ".")
    text = _SPACED_GROUPS.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _SPACE.sub(" ", _SIZING.sub("", text))
    for _ in range(3):
        text = _WRAPPER.sub(r" \1 ", text)
    text = _SPACED_POWER.sub("^", text)
    text = _FRAC_FIRST.sub(r"\\frac{\1}", _FRAC_NAME.sub(r"\\frac", text))
    return _FRAC_SECOND.sub(r"\1{\2}", text)


def _without_dollars(text: str) -> str:
    """Paired `$` are math fences and go; one that opens or closes no fence is a currency and stays."""
    text = FENCE.sub(lambda found: found[1] or found[2], _MATH_FENCE.sub("", text).strip())
    if text.count("$") == 2 and len(text) > 2 and text[0] == text[-1] and text[-2] != "\\":
        text = text[1:-1].strip()
    return _ESCAPED.sub(r"\1", text)


def _without_quotes(text: str) -> str:
    for mark in ("**", "`", '"', "'", "*"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    return text


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """The bare answer: the last box, without math fences, emphasis, quotes and closing full stop."""
    text = text.strip()
    if len(text) > MAX_CHARS:
        return text
    found = boxes(text)
    bare = _without_quotes(found[-1][1].strip() if found else text).rstrip(" .,;:")
    bare = _without_dollars(_without_quotes(bare))
    bare = soften(bare).replace("**", "^").strip().rstrip(" .,;:\\")
    if bare in ("{}", r"\{\}", r"\{ \}"):
        return r"\emptyset"
    braced = _BRACED.fullmatch(bare)
    return (braced[1].strip() if braced else bare) or text
