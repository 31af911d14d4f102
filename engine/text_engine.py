"""Engines without a model: text comes from a function, while KV books, requests and results are the real ones."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from engine import proposals
from engine.asks.options import refused
from engine.base import (
    Branch,
    BranchRequest,
    BranchResult,
    Finish,
    KVEvent,
    RuleError,
    ScoreQuery,
    ScoreResult,
    StepRule,
    Usage,
    flat,
    stream_key,
)
from engine.confidence import Groups
from engine.eviction import policy
from engine.kv_tree import KVTree, Payload
from engine.kv_walk import part_at_ends
from engine.tokenizer import ByteCodec

EOS = 256


@dataclass(frozen=True, slots=True)
class CountedKV:
    """KV of `tokens` tokens that takes room in the books only."""

    tokens: int
    bytes_per_token: int

    @property
    def nbytes(self) -> int:
        return self.tokens * self.bytes_per_token

    @property
    def store(self) -> tuple[int, int]:
        return id(self), self.nbytes

    def split(self, at: int) -> tuple[Payload, Payload]:
        return CountedKV(at, self.bytes_per_token), CountedKV(self.tokens - at, self.bytes_per_token)

    def copy(self) -> Payload:
        return replace(self)

    def to_host(self) -> Payload:
        return replace(self)

    def to_device(self) -> Payload:
        return replace(self)


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of one call: per_call + prefilled / prefill_rate + the longest row's steps x step.

    link_rate: tokens/s of KV that comes from another engine.
    """

    per_call_s: float = 0.0
    prefill_rate: float = float("inf")
    step_s: float = 0.0
    link_rate: float = float("inf")

    def seconds(self, prefilled: int, steps: int) -> tuple[float, float]:
        """(prefill, decode)"""
        return prefilled / self.prefill_rate, self.per_call_s + steps * self.step_s


class TextEngine:
    """Base of the simulated and the scripted engine.

    Subclasses give `write` (what the model would write from here to its end) and `judge` (P(yes) of a path).
    sleep: called with each call's seconds; None only reports them. Meanwhile KV can be exported and imported.
    """

    capabilities = frozenset({"logprobs", "confidence", "score", "prune", "kv_export"})
    concurrent = False

    def __init__(
        self,
        *,
        latency: Latency | None = None,
        sleep: Callable[[float], None] | None = None,
        kv_budget_bytes: int | None = None,
        host_budget_bytes: int = 0,
        eviction: str = "lru",
        bytes_per_token: int = 1024,
        context_length: int = 32768,
        fingerprint: str = "text",
    ) -> None:
        self.codec = ByteCodec(context_length)
        self.tree = KVTree(fingerprint, kv_budget_bytes, policy=policy(eviction), host_budget_bytes=host_budget_bytes)
        self.latency = latency or Latency()
        self.sleep = sleep
        self.bytes_per_token = bytes_per_token
        self.counts: Counter[str] = Counter()
        self._books = threading.RLock()

    # -- to be given -----------------------------------------------------------------------------------------------
    def write(self, path: tuple[str, ...], stream: int) -> str | Branch:
        """Text from the end of `path` (segment texts, the prompt first) to the end of the model's turn."""
        raise NotImplementedError

    def judge(self, path: tuple[str, ...], question: str) -> float:
        raise NotImplementedError

    # -- Engine ----------------------------------------------------------------------------------------------------
    def expand(self, requests: Sequence[BranchRequest]) -> list[BranchResult]:
        with self._books:
            results, seconds = self._expand(requests)
            self.tree.enforce_budget()
        self._pass(*seconds)
        return results

    def score(self, queries: Sequence[ScoreQuery]) -> list[ScoreResult]:
        with self._books:
            results, seconds = self._score(queries)
            self.tree.enforce_budget()
        self._pass(*seconds)
        return results

    def release(self, paths: Sequence[bytes]) -> None:
        with self._books:
            for key in paths:
                self.tree.release(key)

    def note_scores(self, items: Sequence[tuple[bytes, float, int]]) -> None:
        self.tree.note_scores(items)

    def pressure(self) -> tuple[int, int, int] | None:
        return proposals.pressure(self.tree, self.bytes_per_token)

    def evict(self, keys: Sequence[bytes]) -> list[bytes]:
        with self._books:
            return proposals.follow(self.tree, keys)

    def export_kv(self, key: bytes, start: int = 0) -> bytes:
        """As `LocalEngine.export_kv`; counted KV has no bytes of its own, so only the path travels."""
        with self._books:
            end = self.tree.find(key)
            if end is None:
                raise ValueError(f"no KV is held for key {key.hex()}")
            tokens = [token for segment in end.path() for token in segment.tokens]
            ends = [part.end for part in end.path()]
        data: bytes = msgpack.packb([self.tree.fingerprint, tokens, ends, start])
        return data

    def import_kv(self, data: bytes) -> int:
        """As `LocalEngine.import_kv`."""
        try:
            fingerprint, tokens, ends, start = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise ValueError(f"not exported KV: {error}") from None
        if fingerprint != self.tree.fingerprint:
            raise ValueError(f"exported KV has model {fingerprint!r}, this engine {self.tree.fingerprint!r}")
        self._pass((len(tokens) - start) / self.latency.link_rate, 0.0)
        with self._books:
            if self.tree.held(tokens) >= start:
                self._hold(tokens)
                for end in ends:
                    self.tree.reach(tokens[:end])
            self.tree.enforce_budget()
            return self.tree.match(tokens).length

    def events(self) -> list[KVEvent]:
        with self._books:
            return self.tree.events()

    def snapshot(self) -> list[KVEvent]:
        with self._books:
            return self.tree.snapshot()

    def stats(self) -> dict[str, Any]:
        return {**self.counts, **self.tree.memory()}

    # -- parts -----------------------------------------------------------------------------------------------------
    def _expand(self, requests: Sequence[BranchRequest]) -> tuple[list[BranchResult], tuple[float, float]]:
        self.counts["calls"] += 1
        usages = [self._prefill(request) for request in requests]
        prefilled = sum(usage.prefilled for usage in usages if isinstance(usage, Usage))
        results = [
            self._decode(request, usage, prefilled) if isinstance(usage, Usage) else usage
            for request, usage in zip(requests, usages, strict=True)
        ]
        longest = max((len(b.token_ids) for r in results for b in r.branches), default=0)
        seconds = self.latency.seconds(prefilled, longest)
        share = {"prefill": seconds[0] / len(results), "decode": seconds[1] / len(results)} if results else {}
        results = [replace(r, usage=replace(r.usage, seconds=share)) for r in results]
        return results, seconds

    def _score(self, queries: Sequence[ScoreQuery]) -> tuple[list[ScoreResult], tuple[float, float]]:
        self.counts["score_calls"] += 1
        results = []
        for query in queries:
            tokens = flat(query.path)[:-1]
            held = self._compute(tokens)
            part_at_ends(self.tree.root, self.tree.reach, query.path)
            scored = len(self.codec.encode(query.question)) + 1
            usage = Usage(prefilled=len(tokens) - held, scored=scored, reused={"exact": held}, held=held)
            results.append(ScoreResult(query.id, self.judge(self._texts(query.path), query.question), usage))
        self.counts["scores"] += len(queries)
        seconds = self.latency.seconds(sum(r.usage.prefilled + r.usage.scored for r in results), 0)
        share = {"score": sum(seconds) / max(len(results), 1)}
        return [replace(r, usage=replace(r.usage, seconds=share)) for r in results], seconds

    def _prefill(self, request: BranchRequest) -> Usage | BranchResult:
        """Hold the path; a path that cannot fit is a result with an error."""
        path = flat(request.path)
        if (error := refused(request.tiers, frozenset())) is not None:
            return BranchResult(request.id, error=error)
        if len(path) + request.rule.max_tokens > self.codec.context_length:
            limit = self.codec.context_length
            return BranchResult(request.id, error=f"path of {len(path)} tokens exceeds the context of {limit}")
        held = self._compute(path[:-1])
        part_at_ends(self.tree.root, self.tree.reach, request.path)
        prefilled = len(path) - 1 - held
        reused = len(request.streams) * (len(path) - 1) - prefilled
        self.counts.update(expansions=1, prefilled=prefilled, reused=reused)
        return Usage(prefilled=prefilled, reused={"exact": reused}, held=held)

    def _decode(self, request: BranchRequest, usage: Usage, prefilled: int) -> BranchResult:
        """prefilled: tokens of the whole call, whose seconds count towards the request's deadline."""
        path, texts = flat(request.path), self._texts(request.path)
        steps = self._steps_until(request.deadline_s, prefilled)
        try:
            branches = tuple(self._branch(texts, stream, request, steps) for stream in request.streams)
        except RuleError as error:
            return BranchResult(request.id, error=str(error))
        for branch in branches:
            self._hold((*path, *branch.token_ids[:-1]))
        generated = sum(len(branch.token_ids) for branch in branches)
        self.counts.update(generated=generated)
        return BranchResult(request.id, branches, replace(usage, generated=generated))

    def _steps_until(self, deadline_s: float | None, prefilled: int) -> int | None:
        """Decode steps that end before the deadline, at least one; None without a bound."""
        if deadline_s is None or not self.latency.step_s:
            return None
        left = deadline_s - sum(self.latency.seconds(prefilled, 0))
        return max(int(left / self.latency.step_s), 1)

    def _branch(self, path: tuple[str, ...], stream: int, request: BranchRequest, steps: int | None) -> Branch:
        written = self.write(path, stream)
        if isinstance(written, Branch):
            return written
        text, finish = cut(written, request.rule)
        if steps is not None and len(text.encode()) + (finish == "eos") > steps:
            text, finish = text.encode()[:steps].decode("utf-8", "ignore"), "cancelled"
        tokens = tuple(self.codec.encode(text)) + ((EOS,) if finish == "eos" else ())
        groups = Groups.of(request.prune)
        if groups is not None and (end := self._unsure_at(groups, stream, len(tokens))) is not None:
            tokens, finish = tokens[:end], "pruned"
            text = self.codec.decode(tokens)
        confidence = 0.5 + (stream % 1000) / 2000
        return Branch(tokens, text, finish, -0.1 * len(tokens), confidence, groups.lowest if groups else None)

    def certainty(self, stream: int, at: int) -> float:
        """Confidence of a row's token number `at`: the row's own level, up and down every eight tokens."""
        return 4 + (stream % 1000) / 250 + stream_key(stream, "certainty", at // 8) % 1000 / 250

    def _unsure_at(self, groups: Groups, stream: int, count: int) -> int | None:
        """Tokens after which a row of `count` tokens is pruned; None if it is not, or ends there anyway."""
        for at in range(count):
            if groups.add(self.certainty(stream, at)) and at + 1 < count:
                return at + 1
        return None

    def _compute(self, tokens: Sequence[int]) -> int:
        """Prefill a path; returns how many of its tokens were held."""
        end = self.tree.reach(tokens)
        held = end.end
        self.tree.count_recomputed(tokens, end)
        self._hold(tokens)
        return held

    def _hold(self, tokens: Sequence[int]) -> None:
        """Hold what there is room for; the books bound what is kept, a call's own rows take no room."""
        cut = lambda start, stop: CountedKV(stop - start, self.bytes_per_token)  # noqa: E731
        self.tree.store(tokens, cut, self.bytes_per_token)

    def _texts(self, path: Sequence[Sequence[int]]) -> tuple[str, ...]:
        return tuple(self.codec.decode(segment) for segment in path)

    def _pass(self, prefill_s: float, decode_s: float) -> None:
        if self.sleep is not None and prefill_s + decode_s > 0:
            self.sleep(prefill_s + decode_s)


def cut(text: str, rule: StepRule) -> tuple[str, Finish]:
    """Where `rule` ends a text that would otherwise run to its end-of-sequence token."""
    data = text.encode()
    for count in _stops(data, rule):
        part = data[:count].decode("utf-8", "ignore")
        if (finish := rule.finish(part, count)) is not None:
            return part, finish
    if len(data) >= rule.max_tokens:
        return data[: rule.max_tokens].decode("utf-8", "ignore"), "length"
    return text, "eos"


def _stops(data: bytes, rule: StepRule) -> Sequence[int]:
    """Token counts at which the rule may fire; only delimiters can be found without looking at each."""
    last = min(len(data), rule.max_tokens)
    if rule.regex is not None or rule.fn is not None or rule.stop:
        return range(1, last + 1)
    counts = [rule.tokens] if rule.tokens is not None and rule.tokens <= last else []
    if rule.delimiter:
        delimiter = rule.delimiter.encode()
        lead = len(data) - len(data.decode().lstrip().encode())
        at = data.find(delimiter, lead)
        if 0 <= at <= last - len(delimiter):
            counts.append(at + len(delimiter))
    return sorted(counts)


def real_time() -> Callable[[float], None]:
    """Sleeps for real: simulated engines then take the time they say."""
    return time.sleep
