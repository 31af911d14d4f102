"""A comparison as a plot: accuracy with its 95 % interval over the tokens each strategy used, as SVG or a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from orchestrator.report.harmless import escaped
from search.comparison import Line

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 400, 60, 40, 250, 50
_INNER_W, _INNER_H = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
_COLOURS = ("#222222", "#3c64b4", "#d68c00", "#1a7f37", "#b42318", "#7a3fb0", "#00808a", "#a0522d", "#c2408f")
_STYLE = (
    "<style>text{font:12px sans-serif;fill:#222}.axis{fill:none;stroke:#888}.grid{stroke:#e2e6ea}"
    ".title{font-size:14px}</style>"
    '<rect width="100%" height="100%" fill="#fff"/>'
)


def svg(lines: Sequence[Line], title: str = "accuracy over tokens") -> str:
    """One point a strategy with its interval; a hollow one above it is pass@n. Lines that grade nothing are left out.

    The horizontal axis is the mean number of generated tokens of a problem.
    """
    shown = [line for line in lines if line.graded and line.accuracy is not None]
    most = _rounded(max((line.generated for line in shown), default=1.0) or 1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img" '
        f'aria-label="{escaped(title)}">',
        _STYLE,
        f'<text class="title" x="{_LEFT}" y="22">{escaped(title)}</text>',
        *_axes(most),
    ]
    for i, line in enumerate(shown):
        parts += _point(line, _COLOURS[i % len(_COLOURS)], most)
        parts += _entry(line, _COLOURS[i % len(_COLOURS)], _TOP + 10 + 34 * i)
    return "\n".join([*parts, "</svg>", ""])


def page(lines: Sequence[Line], title: str = "accuracy over tokens") -> str:
    """The plot as one HTML file that asks nothing of any network."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<link rel="icon" href="data:,">\n'
        f"<title>{escaped(title)}</title>\n</head>\n<body>\n{svg(lines, title)}</body>\n</html>\n"
    )


PLOTS: Mapping[str, Callable[[Sequence[Line], str], str]] = {".html": page, ".svg": svg}
"""By the ending of the file's name."""


def _rounded(value: float) -> float:
    """The end of an axis: the next multiple of half a power of ten."""
    step = 10.0 ** math.floor(math.log10(max(value, 1.0))) / 2
    return step * math.ceil(value / step)


def _at(tokens: float, share: float, most: float) -> tuple[float, float]:
    return _LEFT + _INNER_W * tokens / most, _TOP + _INNER_H * (1 - share)


def _axes(most: float) -> list[str]:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, y = _at(0, share, most)
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_LEFT + _INNER_W}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
    for part in (0.0, 0.5, 1.0):
        x, y = _at(part * most, 0, most)
        parts.append(f'<text x="{x:.1f}" y="{y + 18:.1f}" text-anchor="middle">{part * most:g}</text>')
    middle, bottom = _LEFT + _INNER_W / 2, _TOP + _INNER_H
    parts.append(f'<text x="{middle:.1f}" y="{bottom + 38}" text-anchor="middle">generated tokens a problem</text>')
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_LEFT + _INNER_W}"/>')
    return parts


def _point(line: Line, colour: str, most: float) -> list[str]:
    x, y = _at(line.generated, line.accuracy or 0.0, most)
    _, low = _at(0, line.interval[0], most)
    _, high = _at(0, line.interval[1], most)
    bar = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
    parts = [
        f'<path d="{bar}" stroke="{colour}" fill="none"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"><title>{escaped(_words(line))}</title></circle>',
    ]
    if line.oracle is not None and line.oracle > (line.accuracy or 0.0):
        _, above = _at(0, line.oracle, most)
        parts.append(f'<circle cx="{x:.1f}" cy="{above:.1f}" r="4" fill="none" stroke="{colour}"/>')
    return parts


def _entry(line: Line, colour: str, y: float) -> list[str]:
    x = _LEFT + _INNER_W + 20
    low, high = line.interval
    return [
        f'<circle cx="{x}" cy="{y}" r="5" fill="{colour}"/>',
        f'<text x="{x + 12}" y="{y + 4}">{escaped(line.strategy)}</text>',
        f'<text x="{x + 12}" y="{y + 19}" fill-opacity="0.7">{100 * (line.accuracy or 0):.1f} % '
        f"({100 * low:.1f} - {100 * high:.1f}), pass@n {100 * (line.oracle or 0):.1f} %</text>",
    ]


def _words(line: Line) -> str:
    return f"{line.strategy}: {100 * (line.accuracy or 0):.1f} % of {line.graded}, {line.generated:.0f} tokens"
