"""RewardModel: scores of steps or whole solutions by a reward model that keeps the KV of every path it has read.

A path's steps are read behind the KV of the steps before them, so that tokens processed grow linearly with steps,
whatever branches there are. What was read is remembered; KV is kept below a budget and computed anew where it is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine.admission import Admission, Claim
from engine.attention import choose, register
from engine.base import Usage, flat, key_state, refusal, token_bytes
from engine.kv_tree import KVTree
from engine.loading import pick_device, pick_dtype
from engine.models import ModelSource
from engine.packed import Forward
from engine.packing import PLAIN_ROWS, pack, packed_by
from engine.reward_head import Head, load_headed, reader
from engine.row_kv import RowKV
from engine.selftest import kv_shape, unsupported
from engine.solution import Layout, Reading, RewardQuery, Rewards, Solution
from engine.tokenizer import HFCodec

logger = logging.getLogger(__name__)
PASS_TOKENS = 512
"""Most new tokens of one forward pass."""
_REMEMBERED = 1 << 18


@dataclass(slots=True, eq=False)
class _Node:
    """A path of a call that has to be read to its end. owner: the query that pays."""

    path: tuple[int, ...]
    start: int
    key: bytes
    wanted: bool
    keep: bool
    owner: int

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.path[self.start :]


@dataclass(slots=True, eq=False)
class _Call:
    """Queries under way. keys: of each segment's end, a solution each; values: what was read, by key."""

    solutions: list[Solution]
    keys: list[list[bytes]]
    errors: list[str | None]
    values: dict[bytes, float] = field(default_factory=dict)
    spent: list[Counter[str]] = field(default_factory=list)

    def fail(self, nodes: Sequence[_Node], error: str) -> None:
        """Every path that leads through one of these."""
        lost = {node.key for node in nodes}
        for i, keys in enumerate(self.keys):
            if self.errors[i] is None and lost & set(keys):
                self.errors[i] = error


class RewardModel:
    """One reward model on one device; calls may come from several threads and are served one by one.

    kv_budget_bytes: most bytes of KV at any time; None is unbounded, 0 keeps nothing between calls. incremental: False
    reads every path whole, for models that the tree attention cannot serve.
    """

    def __init__(
        self,
        model: Any,
        codec: HFCodec,
        head: Head,
        layout: Layout,
        *,
        kv_budget_bytes: int | None = 1 << 30,
        attention: str = "auto",
        incremental: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.codec, self.layout, self.clock = model, codec, layout, clock
        self.device = next(model.parameters()).device
        self.counts: Counter[str] = Counter()
        self.tree = KVTree("reward", kv_budget_bytes)
        self._read = reader(head, codec)
        self._scores: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()
        self._forward: Forward | None = None
        shape = kv_shape(model)
        if shape is not None and incremental:
            kernel = packed_by(model)
            least = kernel.least_rows if kernel else PLAIN_ROWS
            self._forward = Forward(model, self.device, least, choose(attention, self.device, shape.dtype))
            self._admission = Admission(self.tree, shape)

    @classmethod
    def load(
        cls,
        source: ModelSource,
        *,
        reading: Reading,
        head: str = "auto",
        labels: tuple[str, str] | None = None,
        separator: str = "\n",
        device: str = "auto",
        dtype: str = "auto",
        threads: int = 1,
        kv_budget_bytes: int | None = 1 << 30,
    ) -> RewardModel:
        """Load a checkpoint and check it against its own attention; one that differs is read whole, right but slow."""
        found = Head.of(source, head, labels)
        where = pick_device(device)
        if where.type == "cpu":
            torch.set_num_threads(threads)
        kind = pick_dtype(dtype, where)
        codec = HFCodec(source)
        reader(found, codec)
        model = load_headed(source, found, where, kind, register())
        reason, _ = unsupported(model, kv_shape(model), choose("auto", where, kind))
        if reason is None:
            pack(model)
        else:
            logger.warning("reward model %r reads every path whole, without KV reuse: %s", source.name, reason)
            model.set_attn_implementation("eager")
        layout = Layout(codec, reading, separator)
        return cls(model, codec, found, layout, kv_budget_bytes=kv_budget_bytes, incremental=reason is None)

    def score(self, queries: Sequence[RewardQuery]) -> list[Rewards]:
        """Values of each query, in order; a path that cannot be read is a result with an error."""
        with self._lock:
            began = self.clock()
            call = self._open(queries)
            if self._forward is None:
                self._score_whole(call)
            else:
                for level in self._levels(call):
                    while level:
                        self._read_some(self._forward, call, level)
                self.tree.enforce_budget()
                self.tree.events()
            self._remember(call)
            self.counts["calls"] += 1
            share = (self.clock() - began) / max(len(queries), 1)
            return [self._rewards(call, i, share) for i in range(len(queries))]

    def stats(self) -> dict[str, Any]:
        """processed: tokens that ran through the model, recomputed ones among them; reads: values read off the head."""
        path = "plain" if self._forward is None else "tree"
        return {**self.counts, **self.tree.memory(), "device": str(self.device), "path": path}

    def check_integrity(self) -> None:
        """Raise RuntimeError if the books of KV do not balance or the budget is exceeded."""
        if self._forward is not None:
            self._admission.check_integrity()

    # -- what is to be read ------------------------------------------------------------------------------------------
    def _open(self, queries: Sequence[RewardQuery]) -> _Call:
        solutions = [self.layout.solution(query.problem, query.steps) for query in queries]
        keys = [_keys(solution) for solution in solutions]
        errors = [refusal(self.codec, flat(solution.segments), 0) for solution in solutions]
        call = _Call(solutions, keys, errors, spent=[Counter() for _ in queries])
        for solution, ends in zip(solutions, keys, strict=True):
            for key in (ends[i] for i in solution.wanted):
                if key in self._scores:
                    self._scores.move_to_end(key)
                    call.values[key] = self._scores[key]
        return call

    def _levels(self, call: _Call) -> list[deque[_Node]]:
        """Paths to be read, each once, by number of segments: parents before children."""
        levels: dict[int, deque[_Node]] = {}
        planned: set[bytes] = set()
        for owner, (solution, keys) in enumerate(zip(call.solutions, call.keys, strict=True)):
            unread = [i for i in solution.wanted if keys[i] not in call.values]
            if call.errors[owner] is not None or not unread:
                continue
            path, count = flat(solution.segments), len(solution.segments)
            end = 0
            for i, segment in enumerate(solution.segments[: max(unread) + 1]):
                start, end = end, end + len(segment)
                held = i not in unread and self.tree.held(path[:end]) == end
                if held or keys[i] in planned:
                    continue
                keep = not (solution.tail and i == count - 1)
                node = _Node(path[:end], start, keys[i], i in unread, keep, owner)
                planned.add(node.key)
                levels.setdefault(i, deque()).append(node)
        return [levels[i] for i in sorted(levels)]

    # -- reading -----------------------------------------------------------------------------------------------------
    def _read_some(self, forward: Forward, call: _Call, waiting: deque[_Node]) -> None:
        """Read the first of these paths, as many as fit into a pass and the budget, in one ragged batch."""
        batch: list[tuple[_Node, Claim]] = []
        size = 0
        try:
            while waiting and (not batch or size + len(waiting[0].tokens) <= PASS_TOKENS):
                node = waiting[0]
                error = self._admission.refusal(node.start, len(node.tokens))
                claim = None if error else self._admission.admit(node.path[: node.start], len(node.tokens), 1)
                if claim is None:
                    if batch and error is None:
                        break
                    call.fail([waiting.popleft()], error or "no room for its KV")
                    continue
                batch.append((waiting.popleft(), claim))
                self._compute(forward, call, node, claim)
                size += len(node.tokens)
            self._run(forward, call, sorted(batch, key=lambda item: item[0].path))
        finally:
            for _, claim in batch:
                self._admission.leave(claim)

    def _compute(self, forward: Forward, call: _Call, node: _Node, claim: Claim) -> None:
        """Compute the part of an admitted path that is not held any more."""
        missing = len(claim.path) - claim.pin.end
        if claim.computed:
            return
        self.tree.count_recomputed(claim.path, claim.pin)
        row = self._admission.compute(claim)
        while row.length < len(claim.path):
            forward([(row, claim.path[row.length : row.length + PASS_TOKENS], False)])
        self._admission.computed(claim)
        self._book(call, node, "prefilled", missing)

    def _run(self, forward: Forward, call: _Call, batch: Sequence[tuple[_Node, Claim]]) -> None:
        """Feed all new tokens, a long segment in parts, and read the head at the ends that are wanted."""
        rows: list[tuple[_Node, Claim, RowKV]] = [(n, c, self._admission.run(c, whole=True)) for n, c in batch]
        for at in range(0, max((len(node.tokens) for node, _ in batch), default=0), PASS_TOKENS):
            fed = [(node, row) for node, _, row in rows if at < len(node.tokens)]
            ends = [node for node, _ in fed if node.wanted and at + PASS_TOKENS >= len(node.tokens)]
            logits = forward([(row, node.tokens[at : at + PASS_TOKENS], node in ends) for node, row in fed])
            self.counts["passes"] += 1
            values = self._read(logits).tolist() if ends else []
            call.values.update(zip((node.key for node in ends), values, strict=True))
            self.counts["reads"] += len(ends)
        for node, claim, row in rows:
            self._admission.end(claim, row, node.path if node.keep else None)
            self._book(call, node, "scored" if node.wanted else "prefilled", len(node.tokens))

    @torch.inference_mode()
    def _score_whole(self, call: _Call) -> None:
        """Each path in a pass of its own, with the model's own attention."""
        for i, (solution, keys) in enumerate(zip(call.solutions, call.keys, strict=True)):
            unread = [j for j in solution.wanted if keys[j] not in call.values]
            if call.errors[i] is not None or not unread:
                continue
            path = flat(solution.segments)
            logits = self.model(input_ids=torch.tensor([path], device=self.device), use_cache=False).logits[0]
            ends = [len(flat(solution.segments[: j + 1])) - 1 for j in unread]
            call.values.update(zip((keys[j] for j in unread), self._read(logits[ends]).tolist(), strict=True))
            call.spent[i]["scored"] += len(path)
            self.counts.update(processed=len(path), reads=len(unread), passes=1)

    # -- books -------------------------------------------------------------------------------------------------------
    def _book(self, call: _Call, node: _Node, what: str, tokens: int) -> None:
        call.spent[node.owner][what] += tokens
        self.counts.update({"processed": tokens, what: tokens})

    def _remember(self, call: _Call) -> None:
        """What is not a number is read anew next time."""
        self._scores.update((key, value) for key, value in call.values.items() if value == value)
        while len(self._scores) > _REMEMBERED:
            self._scores.popitem(last=False)

    def _rewards(self, call: _Call, i: int, seconds: float) -> Rewards:
        if (error := call.errors[i]) is not None:
            return Rewards(error=error)
        spent = call.spent[i]
        values = tuple(call.values[call.keys[i][j]] for j in call.solutions[i].wanted)
        held = max(len(flat(call.solutions[i].segments)) - spent["prefilled"] - spent["scored"], 0)
        usage = Usage(0, spent["prefilled"], spent["scored"], {"exact": held}, seconds={"score": seconds})
        return Rewards(values, usage)


def _keys(solution: Solution) -> list[bytes]:
    """Key of the path to each segment's end."""
    state, keys = key_state("reward"), []
    for segment in solution.segments:
        state.update(token_bytes(segment))
        keys.append(state.copy().digest())
    return keys
