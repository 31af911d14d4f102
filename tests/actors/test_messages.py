"""Wire format of KV events: what is packed comes back; anything else is a BadMessageError."""

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import messages
from actors.messages import BadMessageError, EventBatch, pack, unpack
from actors.rsbcm import RSBCM
from engine.base import KVEvent

KEYS = st.binary(min_size=0, max_size=16)
EVENTS = st.one_of(
    st.builds(KVEvent, st.just("add"), KEYS, KEYS, st.integers(1, 1 << 31)),
    st.builds(KVEvent, st.just("drop"), KEYS),
    st.builds(KVEvent, st.just("sign"), KEYS, signature=st.binary(max_size=messages.MAX_SIGNATURE)),
)
BATCHES = st.builds(
    EventBatch,
    actor=st.text(max_size=20),
    incarnation=st.integers(0, 1 << 63),
    seq=st.integers(0, 1 << 63),
    t_s=st.floats(allow_nan=False),
    events=st.lists(EVENTS, max_size=8).map(tuple),
    snapshot=st.booleans(),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(BATCHES)
def test_what_is_packed_comes_back(batch):
    assert unpack(pack(batch)) == batch


@settings(max_examples=400)
@given(st.binary(max_size=80))
def test_random_bytes_raise_nothing_else(data):
    with pytest.raises(BadMessageError):
        unpack(data)
    assert RSBCM().apply(data) == "bad"


@settings(max_examples=400)
@given(BATCHES, st.data())
def test_damaged_batches_raise_nothing_else(batch, data):
    raw = bytearray(pack(batch))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(BadMessageError):
        assert isinstance(unpack(cut), EventBatch)


@settings(max_examples=400)
@given(st.lists(PLAIN, min_size=4, max_size=7) | PLAIN)
def test_well_formed_msgpack_of_another_shape_is_refused(value):
    with pytest.raises(BadMessageError):
        unpack(msgpack.packb(value))


GOOD = [2, "e", 5, 0, 1.5, [["+", b"k", b"p", 3], ["s", b"k", b"sig"], ["-", b"k"]]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, 1),
        (0, 3),
        (0, "2"),
        (1, b"e"),
        (1, None),
        (2, "5"),
        (2, True),
        (3, -1),
        (3, 0.0),
        (4, None),
        (5, {}),
        (5, "-"),
        (5, [["+", b"k", b"p"]]),
        (5, [["+", b"k", b"p", 0]]),
        (5, [["+", b"k", b"p", -3]]),
        (5, [["+", b"k", b"p", True]]),
        (5, [["+", "k", b"p", 3]]),
        (5, [["-", b"k", b"p"]]),
        (5, [["-", b"k"], ["="]]),
        (5, [["s", b"k"]]),
        (5, [["s", b"k", "text"]]),
        (5, [["s", "k", b"sig"]]),
        (5, [["s", b"k", b"x" * 513]]),
        (5, [["*", b"k"]]),
        (5, [[]]),
        (5, [None]),
    ],
)
def test_each_field_is_checked(field, value):
    assert unpack(msgpack.packb(GOOD)).seq == 0
    bad = [*GOOD]
    bad[field] = value
    with pytest.raises(BadMessageError):
        unpack(msgpack.packb(bad))


def test_a_snapshot_is_marked_by_its_first_operation():
    batch = EventBatch("e", 1, 0, 0.0, (KVEvent("add", b"k", b"p", 3),), snapshot=True)
    assert msgpack.unpackb(pack(batch))[5][0] == ["="]
    assert unpack(pack(batch)).snapshot is True


def test_size_is_bounded(monkeypatch):
    data = pack(EventBatch("e", 1, 0, 0.0, (KVEvent("add", b"k" * 16, b"p" * 16, 3),) * 5))
    monkeypatch.setattr(messages, "MAX_OPS", 4)
    with pytest.raises(BadMessageError):
        unpack(data)
    monkeypatch.setattr(messages, "MAX_OPS", 6)
    assert len(unpack(data).events) == 5
    monkeypatch.setattr(messages, "MAX_BYTES", len(data) - 1)
    with pytest.raises(BadMessageError, match="exceeds"):
        unpack(data)
