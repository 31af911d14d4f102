"""A tree as a picture or a graph: SVG with texts, PNG without, DOT and GraphML for other programs."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import networkx as nx

from orchestrator.report.harmless import escaped, visible
from orchestrator.report.layout import places

Nodes = Sequence[Mapping[str, Any]]
_GAP_X, _GAP_Y, _LABEL = 250, 22, 34
_DOT, _EDGE, _WIN = (60, 100, 180), (190, 196, 204), (214, 140, 0)
_MAX_PIXELS = 40_000_000


def svg(nodes: Nodes) -> str:
    """The tree with scores and the beginning of each thought; the winning path is marked."""
    where = {name: (30 + x * _GAP_X, 20 + y * _GAP_Y) for name, (x, y) in places(nodes).items()}
    width = max(x for x, _ in where.values()) + _GAP_X
    height = max(y for _, y in where.values()) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
        _STYLE,
    ]
    for node in nodes:
        if node["id"] not in where:
            continue
        x, y = where[node["id"]]
        if node["parent"] in where:
            px, py = where[node["parent"]]
            middle = x - 40
            kind = "win" if node.get("win") else "edge"
            parts.append(
                f'<path class="{kind}" d="M{px:.0f} {py:.1f}C{middle:.0f} {py:.1f} {middle:.0f} {y:.1f} '
                f'{x:.0f} {y:.1f}"/>'
            )
        parts.append(f'<circle class="{escaped(node["status"])}" cx="{x:.0f}" cy="{y:.1f}" r="4"/>')
        parts.append(f'<text x="{x + 8:.0f}" y="{y + 4:.1f}">{escaped(label(node))}</text>')
    return "\n".join([*parts, "</svg>", ""])


_STYLE = (
    "<style>text{font:11px sans-serif;fill:#222}path{fill:none;stroke:#bcc4cc}path.win{stroke:#d68c00;stroke-width:3}"
    "circle{fill:#3c64b4}circle.pruned,circle.dead{fill:#b42318}circle.terminal{fill:#1a7f37}</style>"
    '<rect width="100%" height="100%" fill="#fff"/>'
)


def label(node: Mapping[str, Any]) -> str:
    """Score and the beginning of the thought."""
    score = "" if node["score"] is None else f"{node['score']:.3f} "
    text = " ".join(str(node["text"]).split())
    return score + (text if len(text) <= _LABEL else text[: _LABEL - 3] + "...") if text else f"{score}{node['id']}"


def dot(nodes: Nodes) -> str:
    """Graphviz; open with `dot -Tsvg`."""
    lines = ["digraph tree {", '  rankdir=LR; node [shape=box, fontname="sans-serif"];']
    for node in nodes:
        mark = ", color=orange, penwidth=3" if node.get("win") else ""
        lines.append(f'  "{_dot(node["id"])}" [label="{_dot(label(node))}"{mark}];')
    lines += [f'  "{_dot(n["parent"])}" -> "{_dot(n["id"])}";' for n in nodes if n["parent"] is not None]
    return "\n".join([*lines, "}", ""])


def graphml(trees: Mapping[str, Nodes]) -> str:
    """All trees as one graph; node ids are `problem/node`. Missing values are left out."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for problem, nodes in trees.items():
        for node in nodes:
            facts = {key: visible(v) if isinstance(v, str) else v for key, v in node.items() if _simple(v)}
            graph.add_node(visible(f"{problem}/{node['id']}"), problem=visible(problem), **facts)
            if node["parent"] is not None:
                graph.add_edge(visible(f"{problem}/{node['parent']}"), visible(f"{problem}/{node['id']}"))
    out = io.BytesIO()
    nx.write_graphml(graph, out)
    return out.getvalue().decode("utf-8")


def png(nodes: Nodes) -> bytes:
    """The shape of the tree, scores by shade, the winning path in another colour. ValueError if it is too large."""
    step_x, step_y = 40, 8
    where = {n: (10 + int(x * step_x), 10 + int(y * step_y)) for n, (x, y) in places(nodes).items()}
    width = max(x for x, _ in where.values()) + 12
    height = max(y for _, y in where.values()) + 12
    if width * height > _MAX_PIXELS:
        raise ValueError(f"a picture of {width} x {height} points is too large; use svg")
    pixels = bytearray(b"\xff" * (width * height * 3))

    def put(x: int, y: int, colour: tuple[int, int, int]) -> None:
        at = (y * width + x) * 3
        pixels[at : at + 3] = bytes(colour)

    for node in sorted(nodes, key=lambda n: bool(n.get("win"))):
        if node["parent"] in where and node["id"] in where:
            for x, y in _line(where[node["parent"]], where[node["id"]]):
                put(x, y, _WIN if node.get("win") else _EDGE)
    for node in nodes:
        if node["id"] in where:
            x, y = where[node["id"]]
            for dx in range(-2, 3):
                for dy in range(-2, 3):
                    put(x + dx, y + dy, _WIN if node.get("win") else _shade(node["score"]))
    return _png(width, height, bytes(pixels))


def _shade(score: float | None) -> tuple[int, int, int]:
    """From red to green; no score is blue."""
    if score is None:
        return _DOT
    return int(200 * (1 - score)), int(150 * score), 40


def _line(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    (x0, y0), (x1, y1) = start, end
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    for i in range(steps + 1):
        yield x0 + (x1 - x0) * i // steps, y0 + (y1 - y0) * i // steps


def _png(width: int, height: int, pixels: bytes) -> bytes:
    """PNG (ISO/IEC 15948), 8-bit RGB, no filter."""
    rows = b"".join(b"\0" + pixels[y * width * 3 : (y + 1) * width * 3] for y in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _simple(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _dot(text: str) -> str:
    return visible(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
