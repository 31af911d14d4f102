"""Display maths on lines of its own, written inline: readers of answers go line by line."""

import re

from search.answers.latex import MAX_CHARS

_ALIGNED = re.compile(
    r"\\begin\{((?:align|equation|gather|multline|flalign|displaymath|split)(?:ed)?\*?)\}"
    rf"([\s\S]{{0,{MAX_CHARS}}}?)\\end\{{\1\}}"
)
_BLOCK = re.compile(
    rf"(?<!\\)\\\[(?P<bracketed>[^\n]{{0,{MAX_CHARS}}}\n[\s\S]{{0,{MAX_CHARS}}}?)(?<!\\)\\\]"
    rf"|\$\$(?P<dollars>[^$\n]{{0,{MAX_CHARS}}}\n[^$]{{0,{MAX_CHARS}}})\$\$"
)
_ROW_END = re.compile(r"\\\\(?:\[[^\]\n]{0,20}\])?")
_NOTE = re.compile(r"\\(?:tag\*?|label)\{[^{}]*\}|\\(?:nonumber|notag)\b|(?<!\\)&")
_SOLVED = re.compile(r"([A-Za-z](?:_\w)?)\s*=")


def inlined(text: str) -> str:
    r"""`\[...\]` and `$$...$$` over several lines become `$...$`; of aligned rows the last counts, which a derivation
    ends in, or all of them where each gives a variable of its own."""
    if "\\[" not in text and "$$" not in text and "\\begin" not in text:
        return text
    text = _ALIGNED.sub(lambda found: _fenced(_last_row(found[2])), text)
    return _BLOCK.sub(lambda found: _fenced(found["bracketed"] or found["dollars"]), text)


def _fenced(content: str) -> str:
    bare = " ".join(content.split())
    return bare if bare.startswith("$") and bare.endswith("$") and len(bare) > 1 else f"${bare}$"


def _last_row(content: str) -> str:
    rows = [row for part in _ROW_END.split(_NOTE.sub("", content)) if (row := " ".join(part.split()))]
    solved = [found[1] for row in rows if (found := _SOLVED.match(row))]
    if len(rows) > 1 and len(set(solved)) == len(rows):
        return ", ".join(row.rstrip(",") for row in rows)
    return rows[-1].removeprefix("=").strip() if rows else ""
