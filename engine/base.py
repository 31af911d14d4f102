"""The Engine protocol and its token-level requests. An engine knows tokens and KV, not problems, trees or scores."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any, Literal, Protocol, runtime_checkable

Finish = Literal["step", "stop", "eos", "length", "pruned", "cancelled", "error"]
Segments = tuple[tuple[int, ...], ...]
"""A path as token segments, the prompt first; the engine caches KV so that segment ends are addressable."""


class RuleError(ValueError):
    """What a request's own rule raised; the message says so."""


@dataclass(frozen=True, slots=True)
class StepRule:
    """When one step of one row ends (see `search.types.Boundary`); `max_tokens` always ends it."""

    max_tokens: int
    delimiter: str | None = None
    regex: str | None = None
    tokens: int | None = None
    fn: Callable[[str], bool] | None = None
    stop: tuple[str, ...] = ()

    def finish(self, text: str, count: int) -> Finish | None:
        """Finish reason after `count` tokens reading `text`, or None to go on (EOS is the caller's business).

        RuleError if `regex` or `fn` raises.
        """
        if any(stop in text for stop in self.stop):
            return "stop"
        if self.tokens is not None and count >= self.tokens:
            return "step"
        if self.delimiter and self.delimiter in text.lstrip():
            return "step"
        try:
            if self.regex is not None and re.search(self.regex, text):
                return "step"
            if self.fn is not None and text.strip() and self.fn(text):
                return "step"
        except Exception as error:
            raise RuleError(f"the rule of where a step ends raised {type(error).__name__}: {error}") from error
        return "length" if count >= self.max_tokens else None


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Watches the mean confidence of each group of `window` tokens in a row (see `engine.confidence`).

    floor: a row whose newest whole group is below it ends at once, as "pruned"; None only records the lowest group.
    """

    window: int
    floor: float | None = None


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """Sample one continuation of `path` per entry of `streams` (64-bit keys of the rows' random streams)."""

    id: str
    path: Segments
    streams: tuple[int, ...]
    rule: StepRule
    temperature: float = 0.8
    top_p: float = 0.95
    deadline_s: float | None = None
    tiers: frozenset[str] | None = None
    """ASKS tiers that may approximate this call; None: those of the engine's configuration."""
    prune: PruneRule | None = None
    """Ends rows of low confidence; needs the capability of that name."""
    recalled: Callable[[], bool] | None = field(default=None, compare=False)
    """Whether it was cancelled before it came; asked once, by an engine that can cancel, when it can find it."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One sampled continuation. logprob: sum of log p under the model (temperature 1); confidence: mean top-1 p;
    lowest: mean confidence of the lowest group, where a `PruneRule` watched it."""

    token_ids: tuple[int, ...]
    text: str
    finish: Finish
    logprob: float | None = None
    confidence: float | None = None
    lowest: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; prefilled + sum(reused) = rows x (path length - 1).

    The last path token is fed by the first decode step of each row, whose output is the first generated token; so a
    child of a path that was decoded here prefills nothing. reused: by RKSC tier. scored: tokens fed for a score.
    """

    generated: int = 0
    prefilled: int = 0
    scored: int = 0
    reused: Mapping[str, int] = field(default_factory=dict)
    held: int = 0
    """Path tokens whose KV was held when the call began (the actual prefix hit)."""
    exits: int = 0
    """Questions whose reading ended before the last layer (see `LayerExit`)."""
    layer_rows: int = 0
    """Layers that were run for questions, a row counting each; a full pass takes `layer_rows_full`."""
    layer_rows_full: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    """The request's share of its call's seconds, by phase: shares of a call add up to the call."""


@dataclass(frozen=True, slots=True)
class BranchResult:
    id: str
    branches: tuple[Branch, ...] = ()
    usage: Usage = Usage()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LayerExit:
    """CGEE level 2: a question's reading ends at the layer where its answer stands, each row for itself.

    mode "paper": at every layer l >= first, the full vocabulary's entropy H_l < threshold nats and |H_l - H_{l-1}| <
    epsilon (theta, epsilon, l_min of RKSC). "margin": at every `every`-th layer from `first` on, the log-odds of yes
    against no exceed the threshold either way and had one sign at the last `agree` checks. Layers count from 1;
    None is the mode's default (`THRESHOLDS`; first: 2, or half of the layers). Nothing ends early with threshold 0
    (paper) or infinity (margin).
    """

    mode: Literal["paper", "margin"]
    threshold: float | None = None
    epsilon: float = 3.0
    first: int | None = None
    every: int = 2
    agree: int = 2

    def __post_init__(self) -> None:
        if self.mode not in THRESHOLDS:
            raise ValueError(f"layer exit has no mode {self.mode!r}; choices: {', '.join(THRESHOLDS)}")
        for name, value, least in (("threshold", self.limit, 0.0), ("epsilon", self.epsilon, 0.0)):
            if math.isnan(value) or value < least:
                raise ValueError(f"layer exit's {name} is a number of at least {least:g}, got {value}")
        for name, count in (("first", self.first), ("every", self.every), ("agree", self.agree)):
            if count is not None and count < 1:
                raise ValueError(f"layer exit's {name} is a whole number of at least 1, got {count}")

    @property
    def limit(self) -> float:
        """The threshold, or the mode's default."""
        return THRESHOLDS[self.mode] if self.threshold is None else self.threshold

    def begin(self, layers: int) -> int:
        """First layer of `layers`, from 1, after which a reading may end."""
        if self.first is not None:
            return self.first
        return 2 if self.mode == "paper" else max(layers // 2, 1)


THRESHOLDS: Mapping[str, float] = {"paper": 8.0, "margin": 2.0}
"""Default threshold of each mode of `LayerExit`: nats of entropy, log-odds."""


@dataclass(frozen=True, slots=True)
class ScoreQuery:
    """P(yes) at the last token of `question` appended to `path`; the question's KV is dropped afterwards.

    layer_exit: an engine without the capability of that name reads all layers, and its counts say so. values: labels of
    single tokens with a value each; then the expected value is asked for instead of P(yes), and all layers are read.
    """

    id: str
    path: Segments
    question: str
    layer_exit: LayerExit | None = None
    tiers: frozenset[str] | None = None
    """As in `BranchRequest`."""
    values: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ScoreResult:
    id: str
    p_yes: float | None
    usage: Usage = Usage()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class KVEvent:
    """Change of what an engine holds. op: "add" (key's prefix of `end` tokens is held, behind `parent`) | "drop" |
    "sign" (the held prompt of this key has this signature, see `engine.sketch`)."""

    op: Literal["add", "drop", "sign"]
    key: bytes
    parent: bytes = b""
    end: int = 0
    signature: bytes = b""


class Codec(Protocol):
    """Text to tokens and back, with the model's own chat template. Cheap to build: needs no weights.

    `begin(messages)`, the tokens of a chat, and `special(text)`, the id of the token of that name that `decode` leaves
    out, or None, may be there too, for what no text says (see `begin` and `stop_ids`).
    """

    @property
    def eos_ids(self) -> frozenset[int]: ...

    @property
    def context_length(self) -> int:
        """Most tokens the model can attend to."""
        ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The chat as text, up to where the assistant starts to write."""
        ...

    def next_turn(self, text: str) -> str:
        """What follows an assistant's turn when the user says `text`, up to the assistant's next first token."""
        ...


class Engine(Protocol):
    """One device's worth of model. A bad request is a result with an error.

    concurrent: whether calls may come from several threads at once, to be served in one batch.
    """

    concurrent: bool

    @property
    def capabilities(self) -> frozenset[str]:
        """Of `logprobs`, `confidence`, `score`, `layer_exit`, `hidden`, `kv_export`, `cancel`, `prune`."""
        ...

    @property
    def codec(self) -> Codec: ...

    def expand(self, requests: Sequence[BranchRequest]) -> list[BranchResult]: ...

    def score(self, queries: Sequence[ScoreQuery]) -> list[ScoreResult]: ...

    def release(self, paths: Sequence[bytes]) -> None:
        """Drop KV at and below the prefixes with these keys; unknown keys are ignored."""
        ...

    def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        """(prefix key, score, depth) of judged nodes, for eviction by omega = score / (depth + 1); any thread."""
        ...

    def events(self) -> list[KVEvent]:
        """Changes of the held KV since the last call, oldest first."""
        ...

    def snapshot(self) -> list[KVEvent]:
        """Everything held now, as adds, parents first."""
        ...

    def stats(self) -> dict[str, Any]:
        """Counters and gauges: kv_tokens, kv_bytes, expansions, generated, prefilled, ..."""
        ...


@runtime_checkable
class Evicting(Protocol):
    """An engine that lets the cluster's index propose what to evict (RSBCM)."""

    def pressure(self) -> tuple[int, int, int] | None:
        """(bytes of KV on the device, most bytes allowed, bytes a token); None: wants no proposals. Any thread."""
        ...

    def evict(self, keys: Sequence[bytes]) -> list[bytes]:
        """Move the segments that end at these keys off the device; returns those that must stay."""
        ...


@runtime_checkable
class Cancelling(Protocol):
    """An engine that can end requests under way."""

    def cancel(self, ids: Sequence[str]) -> None:
        """End these requests at the next step, with what they have; from any thread. Unknown ids are ignored."""
        ...


@runtime_checkable
class Exporting(Protocol):
    """An engine whose KV can go to another one with the same model (capability `kv_export`), while calls are under way
    too, and from any thread."""

    def export_kv(self, key: bytes, start: int = 0) -> bytes:
        """KV of the path that ends at `key` (see `path_keys`) from token `start` on; ValueError if it is not held."""
        ...

    def import_kv(self, data: bytes) -> int:
        """Hold exported KV as far as there is room; tokens of its path that are held now. ValueError if it is not from
        the same model."""
        ...


def path_keys(fingerprint: str, path: Segments) -> list[bytes]:
    """Key of the prefix up to, but excluding, each segment's last token: what an engine holds of a finished segment.

    blake2b over (fingerprint, all tokens so far), 16 bytes. The key names the prefix whatever its segmentation, so
    radix splits inside a segment change no other key.
    """
    state = key_state(fingerprint)
    keys = []
    for segment in path:
        state.update(token_bytes(segment[:-1]))
        keys.append(state.copy().digest())
        state.update(token_bytes(segment[-1:]))
    return keys


def key_state(fingerprint: str) -> blake2b:
    """Hash state of the empty prefix."""
    return blake2b(fingerprint.encode() + b"\0", digest_size=16)


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Four little-endian bytes a token."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def begin(codec: Codec, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Tokens of a chat up to where the assistant starts to write, with the token that all texts begin with if the
    codec knows of one."""
    own = getattr(codec, "begin", None)
    tokens: list[int] = codec.encode(codec.render(messages)) if own is None else own(messages)
    return tokens


def stop_ids(codec: Codec, stop: Sequence[str]) -> frozenset[int]:
    """Tokens that are stop strings by themselves and never in a text."""
    special = getattr(codec, "special", lambda text: None)
    return frozenset(token for text in stop if (token := special(text)) is not None)


def flat(path: Segments) -> tuple[int, ...]:
    return tuple(chain.from_iterable(path))


def stream_key(*parts: object) -> int:
    """64-bit key of a random stream from its coordinates (seed, problem, node, sample index)."""
    digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def refusal(codec: Codec, path: Sequence[int], new_tokens: int) -> str | None:
    """Why a path cannot be grown by `new_tokens` at all, or None."""
    if not path:
        return "path has no tokens"
    limit = codec.context_length
    if len(path) + new_tokens <= limit:
        return None
    return f"path of {len(path)} tokens and {new_tokens} new ones exceed the model's context of {limit}"


def without_repeated_end(codec: Codec, path: Sequence[int], question: list[int]) -> list[int]:
    """Question tokens, less an end-of-turn token at their start that the path already ends with."""
    repeated = path and question and path[-1] in codec.eos_ids and question[0] == path[-1]
    return question[1:] if repeated else question
