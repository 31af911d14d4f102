"""Plots as inline SVG, coloured by the page's own style: bars, histograms, a line, a timeline of engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from orchestrator.report.harmless import escaped

WIDTH, HEIGHT = 420, 150
_LEFT, _TOP, _BOTTOM = 44, 8, 22
_INNER_W, _INNER_H = WIDTH - _LEFT - 8, HEIGHT - _TOP - _BOTTOM


def figure(title: str, svg: str) -> str:
    """A plot with its title, which is also its text for screen readers."""
    return f"<figure><figcaption>{escaped(title)}</figcaption>{svg}</figure>"


def bars(title: str, values: Mapping[str, float], unit: str = "") -> str:
    """One horizontal bar a name, with its number."""
    rows = [(name, value) for name, value in values.items() if value > 0]
    if not rows:
        return figure(title, "<p class=none>nothing to show</p>")
    top = max(value for _, value in rows)
    step = 22
    parts = []
    for i, (name, value) in enumerate(rows):
        y, width = i * step, max((WIDTH - 230) * value / top, 1)
        parts.append(f'<text x="96" y="{y + 14}" text-anchor="end">{escaped(name)}</text>')
        parts.append(f'<rect class="bar" x="102" y="{y + 3}" width="{width:.1f}" height="14"/>')
        parts.append(f'<text x="{108 + width:.1f}" y="{y + 14}">{_number(value)}{escaped(unit)}</text>')
    return figure(title, _svg(title, parts, len(rows) * step + 4))


def histogram(title: str, values: Sequence[float], bins: int = 20) -> str:
    """How many values fall into each of `bins` equal ranges."""
    if not values:
        return figure(title, "<p class=none>nothing to show</p>")
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(int((value - low) / span * bins), bins - 1)] += 1
    top, width = max(counts), _INNER_W / bins
    parts = _axes(_number(low), _number(low + span), str(top))
    for i, count in enumerate(counts):
        height = _INNER_H * count / top
        x, y = _LEFT + i * width, _TOP + _INNER_H - height
        if count:
            parts.append(f'<rect class="bar" x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{height:.1f}"/>')
    return figure(title, _svg(title, parts, HEIGHT))


def running_share(title: str, hits: Sequence[bool]) -> str:
    """The share of hits among the first n, over n."""
    if not hits:
        return figure(title, "<p class=none>no right answers are known</p>")
    shares, right = [], 0
    for n, hit in enumerate(hits, 1):
        right += hit
        shares.append(right / n)
    every = max(len(shares) // 300, 1)
    kept = [*shares[::every], shares[-1]]
    points = " ".join(
        f"{_LEFT + _INNER_W * i / max(len(kept) - 1, 1):.1f},{_TOP + _INNER_H * (1 - share):.1f}"
        for i, share in enumerate(kept)
    )
    parts = [*_axes("1", str(len(hits)), "100%"), f'<polyline class="line" points="{points}"/>']
    return figure(title, _svg(title, parts, HEIGHT))


def timeline(title: str, busy: Sequence[tuple[str, float, float]], most: int = 4000) -> str:
    """One lane an engine, a block for each stretch (name, begin, end in seconds) of work.

    Of more than `most` stretches, neighbours are one block, the paler the less of it was work.
    """
    if not busy:
        return figure(title, "<p class=none>no calls were made</p>")
    names = sorted({name for name, _, _ in busy})
    end = max(ends for _, _, ends in busy) or 1.0
    step, inner = 20, WIDTH * 2 - 110
    parts = []
    for i, name in enumerate(names):
        parts.append(f'<text x="96" y="{i * step + 14}" text-anchor="end">{escaped(name)}</text>')
        parts.append(f'<rect class="lane" x="102" y="{i * step + 3}" width="{inner}" height="14"/>')
    for name, begins, ends, worked in _merged(busy, end * len(names) / most if len(busy) > most else 0.0):
        x, width = 102 + inner * begins / end, max(inner * (ends - begins) / end, 0.5)
        y, share = names.index(name) * step + 3, worked / ((ends - begins) or 1.0)
        pale = f' opacity="{share:.2f}"' if worked < ends - begins else ""
        parts.append(f'<rect class="bar" x="{x:.1f}" y="{y}" width="{width:.1f}" height="14"{pale}/>')
    parts.append(f'<text x="102" y="{len(names) * step + 14}">0 s</text>')
    parts.append(f'<text x="{102 + inner}" y="{len(names) * step + 14}" text-anchor="end">{_number(end)} s</text>')
    return figure(title, _svg(title, parts, len(names) * step + 20, WIDTH * 2))


def _merged(busy: Sequence[tuple[str, float, float]], gap_s: float) -> Iterator[tuple[str, float, float, float]]:
    """(name, begin, end, seconds of work in it): stretches of a name with shorter gaps between them are one."""
    for name, stretches in groupby(sorted(busy), key=lambda stretch: stretch[0]):
        block: list[float] = []
        for _, begins, ends in stretches:
            if block and begins - block[1] < gap_s:
                block = [block[0], max(block[1], ends), block[2] + ends - begins]
                continue
            if block:
                yield name, block[0], block[1], block[2]
            block = [begins, ends, ends - begins]
        yield name, block[0], block[1], block[2]


def _axes(low: str, high: str, top: str) -> list[str]:
    bottom = _TOP + _INNER_H
    return [
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{_LEFT + _INNER_W}"/>',
        f'<text x="{_LEFT - 5}" y="{_TOP + 9}" text-anchor="end">{escaped(top)}</text>',
        f'<text x="{_LEFT - 5}" y="{bottom}" text-anchor="end">0</text>',
        f'<text x="{_LEFT}" y="{bottom + 15}">{escaped(low)}</text>',
        f'<text x="{_LEFT + _INNER_W}" y="{bottom + 15}" text-anchor="end">{escaped(high)}</text>',
    ]


def _svg(title: str, parts: Sequence[str], height: float, width: int = WIDTH) -> str:
    name = escaped(title)
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
