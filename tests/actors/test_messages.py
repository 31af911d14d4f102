"""Wire format of KV events: what is packed comes back; anything else is a BadMessageError."""

import contextlib

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import messages
from actors.messages import KEY_BYTES, VERSION, BadMessageError, Digest, EventBatch, Memory, pack, unpack
from actors.rsbcm import RSBCM

KEYS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
ADDED = st.lists(st.tuples(KEYS, KEYS, st.integers(1, (1 << 32) - 1)), max_size=5)
COUNTS = st.integers(0, 1 << 63)


@st.composite
def batches(draw):
    added = draw(ADDED)
    return EventBatch(
        actor=draw(st.text(max_size=20)),
        incarnation=draw(COUNTS),
        seq=draw(COUNTS),
        t_s=draw(st.floats(allow_nan=False)),
        added=tuple(key for key, _, _ in added),
        parents=tuple(parent for _, parent, _ in added),
        ends=tuple(end for _, _, end in added),
        dropped=tuple(draw(st.lists(KEYS, max_size=4))),
        signed=tuple(draw(st.lists(st.tuples(KEYS, st.binary(max_size=messages.MAX_SIGNATURE)), max_size=3))),
        snapshot=draw(st.booleans()),
        digest=draw(st.none() | st.builds(Digest, COUNTS, st.integers(0, (1 << 128) - 1))),
        memory=draw(st.none() | st.builds(Memory, COUNTS, COUNTS, COUNTS)),
        refused=tuple(draw(st.lists(KEYS, max_size=3))),
    )


BATCHES = batches()
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)


@given(BATCHES)
def test_what_is_packed_comes_back(batch):
    assert unpack(pack(batch)) == batch


@settings(max_examples=300)
@given(st.binary(max_size=80))
def test_random_bytes_raise_nothing_else(data):
    with pytest.raises(BadMessageError):
        unpack(data)
    assert RSBCM().apply(data).ack == "bad"


@settings(max_examples=300)
@given(BATCHES, st.data())
def test_damaged_batches_raise_nothing_else(batch, data):
    raw = bytearray(pack(batch))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with contextlib.suppress(BadMessageError):
        assert isinstance(unpack(cut), EventBatch)
    rsbcm = RSBCM()
    assert rsbcm.apply(cut).ack in ("ok", "resync", "bad")
    rsbcm.check_integrity()


@settings(max_examples=300)
@given(st.lists(PLAIN, min_size=4, max_size=7) | PLAIN)
def test_well_formed_msgpack_of_another_shape_is_refused(value):
    with pytest.raises(BadMessageError):
        unpack(msgpack.packb(value))


K = b"k" * 16
GOOD = [
    VERSION,
    "e",
    5,
    0,
    1.5,
    [["+", K, K, b"\3\0\0\0"], ["-", K], ["s", K, [b"sig"]], ["#", 1, K], ["m", 3, 4, 1], ["!", K + K]],
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (0, VERSION - 1),
        (0, VERSION + 1),
        (0, str(VERSION)),
        (0, True),
        (1, b"e"),
        (1, None),
        (1, "e" * 257),
        (2, "5"),
        (2, True),
        (2, -1),
        (3, -1),
        (3, 0.0),
        (4, None),
        (5, {}),
        (5, "-"),
        (5, [["+", K, K]]),
        (5, [["+", K, K, b"\0\0\0\0"]]),
        (5, [["+", K, K, b"\3\0\0"]]),
        (5, [["+", K, K, [3]]]),
        (5, [["+", K, K + K, b"\3\0\0\0"]]),
        (5, [["+", K + K, K + K, b"\3\0\0\0"]]),
        (5, [["+", "k" * 16, K, b"\3\0\0\0"]]),
        (5, [["-", K[:-1]]]),
        (5, [["-", K, K]]),
        (5, [["-", K], ["-", K]]),
        (5, [["=", 1]]),
        (5, [["s", K]]),
        (5, [["s", K, b"sig"]]),
        (5, [["s", K, ["text"]]]),
        (5, [["s", K, [b"x" * 513]]]),
        (5, [["s", K, [b"1", b"2"]]]),
        (5, [["#", 1, K[:-1]]]),
        (5, [["#", -1, K]]),
        (5, [["m", 1, 2]]),
        (5, [["m", 1, 2, None]]),
        (5, [["!", [K]]]),
        (5, [["*", K]]),
        (5, [[["+"], K]]),
        (5, [[]]),
        (5, [None]),
    ],
)
def test_each_field_is_checked(field, value):
    assert unpack(msgpack.packb(GOOD)).refused == (K, K)
    bad = [*GOOD]
    bad[field] = value
    with pytest.raises(BadMessageError):
        unpack(msgpack.packb(bad))


def test_size_is_bounded(monkeypatch):
    data = pack(EventBatch("e", 1, 0, 0.0, (K,) * 5, (K,) * 5, (3,) * 5))
    monkeypatch.setattr(messages, "MAX_ENTRIES", 4)
    with pytest.raises(BadMessageError):
        unpack(data)
    monkeypatch.setattr(messages, "MAX_ENTRIES", 6)
    assert len(unpack(data).added) == 5
    monkeypatch.setattr(messages, "MAX_BYTES", len(data) - 1)
    with pytest.raises(BadMessageError, match="bytes"):
        unpack(data)


def test_keys_of_another_length_are_not_packed():
    for bad in (b"k", b"k" * 17):
        with pytest.raises(ValueError, match="16 bytes"):
            pack(EventBatch("e", 1, 0, 0.0, dropped=(bad, b"k" * (32 - len(bad)))))


def test_a_digest_is_that_of_the_set_whatever_the_way_to_it():
    a, b, c = (bytes([n]) * 16 for n in (1, 2, 3))
    assert Digest().plus([a, b, c]).minus([b]) == Digest().plus([c]).plus([a]) != Digest().plus([a, b])
    assert Digest().plus([a, a]) != Digest()
    assert Digest().plus([a]).minus([a]) == Digest()
