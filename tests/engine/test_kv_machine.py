"""Hypothesis drives a KV tree with two memories against a dictionary of everything that was put in."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.block_index import BlockIndex
from engine.base import path_keys
from engine.eviction import POLICIES, policy
from engine.kv_tree import KVTree, Segment
from engine.kv_walk import part_at_ends
from tests.actors.batches import batch
from tests.engine.fake_kv import BYTES, store

PRINT = "model"
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=7).map(tuple)


def key(tokens):
    return path_keys(PRINT, ((*tokens, 0),))[0]


def prefixes(tokens):
    return {tokens[: i + 1] for i in range(len(tokens))}


class KVMachine(RuleBasedStateMachine):
    """Oracle: where each held prefix's last token is, the pinned paths, and the bytes that run beside the tree."""

    def __init__(self):
        super().__init__()
        self.tree = KVTree(PRINT)
        self.tree.outside = lambda: self.outside
        self.outside = 0
        self.held: dict[tuple[int, ...], str] = {}
        self.pins: list[tuple[tuple[int, ...], Segment]] = []
        self.evicted: set[tuple[int, ...]] = set()
        self.index = BlockIndex()
        self.seq = 0

    @initialize(name=st.sampled_from(sorted(POLICIES)), host=st.sampled_from([0, 4, 30]))
    def choose(self, name, host):
        self.tree.policy = policy(name)
        self.tree.host_budget_bytes = host * BYTES

    def pinned(self, prefix):
        return any(path[: len(prefix)] == prefix for path, _ in self.pins)

    def needed(self):
        """Bytes on the device that nothing can free: buffers of pinned segments, whole."""
        segments = [s for s in self.tree.segments() if s.readers]
        return self.outside + sum(dict(s.payload.store for s in segments).values())

    # -- rules -----------------------------------------------------------------------------------------------------
    @rule(tokens=TOKENS, waste=st.none() | st.integers(0, 2))
    def insert(self, tokens, waste):
        """What does not fit on the device goes to the host, or is not kept."""
        before = set(self.held)
        segment = store(self.tree, tokens, waste)
        self._look()
        assert set(self.held) <= before | prefixes(tokens)
        if segment is None:
            assert self.tree.budget_bytes
            assert tokens not in self.held
            return
        assert (segment.end, segment.key) == (len(tokens), key(tokens))
        assert prefixes(tokens) <= set(self.held)
        self.evicted -= prefixes(tokens)

    @rule(tokens=TOKENS)
    def match(self, tokens):
        match = self.tree.match(tokens)
        expected = max((len(p) for p in prefixes(tokens) if p in self.held), default=0)
        assert match.length == expected
        whole = [token for segment in match.segments for token in segment.tokens]
        assert tuple(whole) == tokens[: len(whole)]
        assert (match.partial is None) == (len(whole) == match.length)

    @rule(tokens=TOKENS)
    def split(self, tokens):
        end = self.tree.reach(tokens)
        assert end.end == max((len(p) for p in prefixes(tokens) if p in self.held), default=0)

    @rule(tokens=TOKENS)
    def pin(self, tokens):
        """A reader starts on what is held of the path, if all of that fits on the device."""
        end = self.tree.reach(tokens)
        away = sum(s.payload.nbytes for s in end.path() if s.state == "host")
        self.tree.pin(end)
        if not self.tree.make_room(away):
            assert self.tree.budget_bytes is not None and self.needed() + away > self.tree.budget_bytes
            self.tree.unpin(end)
        elif end is not self.tree.root:
            restored = self.tree.num_restored
            self.tree.restore(end)
            assert (self.tree.num_restored > restored) == (away > 0)
            self.pins.append((tokens[: end.end], end))
        self._look()

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data):
        _, segment = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        self.tree.unpin(segment)
        self.tree.enforce_budget()
        self._look()

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def detach(self, data):
        """The pinned path gets memory of its own; nothing else changes."""
        before = dict(self.held)
        _, segment = data.draw(st.sampled_from(self.pins))
        self.tree.detach(segment)
        self._look()
        assert all(self.held.get(p) == where for p, where in before.items() if self.pinned(p))

    @rule(tokens=TOKENS)
    def release(self, tokens):
        self._release(tokens)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_held(self, data):
        ends = (segment.path() for segment in self.tree.segments())
        paths = sorted(tuple(token for segment in path for token in segment.tokens) for path in ends)
        self._release(data.draw(st.sampled_from(paths)))

    def _release(self, tokens):
        """Whole segments go: the one that ends at the key from its start on, all below, and what only led there."""
        found = self.tree.find(key(tokens))
        above = [(node.start, node.end) for node in found.partings_above()] if found else []
        expected = dict(self.held)
        if found:
            below = {p for p in self.held if len(p) > found.start and (*p, *tokens[len(p) :])[: len(tokens)] == tokens}
            expected = {p: where for p, where in self.held.items() if p not in below or self.pinned(p)}
        for start, end in above:
            head = tokens[:end]
            if self.pinned(head) or any(len(p) > end and p[:end] == head for p in expected):
                break
            expected = {p: where for p, where in expected.items() if not (len(p) > start and head[: len(p)] == p)}
        self.tree.release(key(tokens))
        self._look(evicted=False)
        assert self.held == expected

    @rule(first=TOKENS, second=TOKENS)
    def part(self, first, second):
        """Where nodes end is kept apart; nothing else changes."""
        before = dict(self.held)
        part_at_ends(self.tree.root, self.tree.reach, (first, second, (0,)))
        assert self._walk() == before
        ends = {segment.key for segment in self.tree.segments()}
        for path in (first[:-1], (*first, *second)[:-1]):
            assert key(path) in ends or path not in before

    @rule(budget=st.one_of(st.none(), st.integers(0, 14)))
    def evict(self, budget):
        before, evicted = dict(self.held), self.tree.num_evicted
        self.tree.budget_bytes = None if budget is None else budget * BYTES
        self.tree.enforce_budget()
        self._look()
        on_device = {p for p, where in before.items() if where == "device"}
        left = on_device - {p for p, where in self.held.items() if where == "device"}
        assert bool(left) == (self.tree.num_evicted > evicted)
        assert all(self.held.get(p) == before[p] for p in before if self.pinned(p))
        if budget == 0:
            assert all(map(self.pinned, self.held))

    @rule(tokens=st.integers(1, 4))
    def run(self, tokens):
        """Rows outside the tree take bytes, if there is room once others have left."""
        if self.tree.make_room(tokens * BYTES):
            self.outside += tokens * BYTES
        else:
            assert self.needed() + tokens * BYTES > self.tree.budget_bytes
        self._look()

    @precondition(lambda self: self.outside)
    @rule()
    def stop(self):
        self.outside = 0
        self.tree.enforce_budget()
        self._look()

    @rule(tokens=TOKENS, score=st.floats(0, 1), depth=st.integers(0, 3))
    def note_score(self, tokens, score, depth):
        self.tree.note_scores([(key(tokens), score, depth)])
        segment = self.tree.find(key(tokens))
        assert segment is None or segment.omega == score / (depth + 1)

    @rule(tokens=TOKENS)
    def recompute(self, tokens):
        """Only what was held once and evicted counts, and only what is not held now."""
        end = self.tree.reach(tokens)
        found = self.tree.count_recomputed(tokens, end)
        assert 0 <= found <= len({p for p in prefixes(tokens) if p in self.evicted and p not in self.held})

    # -- books -----------------------------------------------------------------------------------------------------
    def _walk(self):
        found = {}
        stack = [(self.tree.root, ())]
        while stack:
            node, path = stack.pop()
            found.update({path + node.tokens[: i + 1]: node.state for i in range(len(node.tokens))})
            stack.extend((child, path + node.tokens) for child in node.children.values())
        return found

    def _look(self, evicted=True):
        """Take over what the tree holds now; nothing pinned may be missing, or away."""
        now = self._walk()
        gone = set(self.held) - set(now)
        assert not any(map(self.pinned, gone))
        if evicted:
            self.evicted |= gone
        self.held = now

    @invariant()
    def books_balance(self):
        tree = self.tree
        tree.check_integrity()
        assert self._walk() == self.held
        assert tree.num_tokens == len(self.held)
        assert tree.num_bytes == BYTES * sum(where == "device" for where in self.held.values())
        for ledger, where in ((tree.device, "device"), (tree.host, "host")):
            stores = dict(s.payload.store for s in tree.segments() if s.state == where)
            assert ledger.nbytes == sum(stores.values())
        for segment in tree.segments():
            assert (segment.payload.tokens, segment.payload.where) == (segment.tokens, segment.state)
            assert segment.readers == sum(segment in pinned.path() for _, pinned in self.pins)
        for path, segment in self.pins:
            assert segment.end == len(path) and self.held[path] == "device"

    @invariant()
    def budgets_hold(self):
        tree = self.tree
        if tree.budget_bytes:
            assert tree.device.nbytes + self.outside <= max(tree.budget_bytes, self.needed())
        assert tree.host.nbytes <= max(tree.host_limit, 0)
        assert tree.num_offloaded <= tree.num_evicted

    @invariant()
    def replayed_events_give_the_same_keys(self):
        assert self.index.apply(batch(self.seq, *self.tree.events(), actor="e")) == "ok"
        self.seq += 1
        fresh = BlockIndex()
        assert fresh.apply(batch(9, *self.tree.snapshot(), actor="e", snapshot=True)) == "ok"
        held = {segment.key: (segment.parent.key, segment.end) for segment in self.tree.segments()}
        for index in (self.index, fresh):
            assert index.live("e").keys == held
            index.check_integrity()


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(max_examples=100, stateful_step_count=40)
