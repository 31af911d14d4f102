"""Engines tell the signatures of the roots they hold, where a tier can use them."""

import pytest

torch = pytest.importorskip("torch")

from engine.admission import spans_of
from engine.asks.options import Asks
from engine.asks.signature import NUM_BYTES, signature
from engine.base import flat, path_keys
from engine.sketch import nearness, sketch
from tests.engine.asks.conftest import BODY


def signs(events):
    return {event.key: event.signature for event in events if event.op == "sign"}


def test_a_held_prompt_is_signed_once_and_again_in_a_snapshot(lab):
    engine = lab.engine(Asks(shifted=True))
    ask = lab.ask(BODY)
    engine.expand([ask])
    expected = {path_keys("tiny", ask.path)[0]: sketch(ask.path[0])}
    events = engine.events()
    assert signs(events) == expected
    assert events.index(next(e for e in events if e.op == "sign")) > 0
    engine.expand([ask])
    assert signs(engine.events()) == {}
    assert signs(engine.snapshot()) == expected
    engine.release(list(expected))
    assert signs(engine.snapshot()) == {}


def test_an_engine_without_approximating_tiers_signs_nothing(lab):
    engine = lab.engine()
    engine.expand([lab.ask(BODY)])
    assert signs(engine.events()) == signs(engine.snapshot()) == {}


def test_pooled_states_of_near_roots_are_nearer(lab):
    engine = lab.engine()
    texts = (BODY, BODY.replace("17", "18"), "zzzz qqqq " * 11)
    marks = []
    for text in texts:
        engine.expand([lab.ask(text)])
        marks.append(signature(spans_of(engine.tree.reach(flat(lab.path(text))[:-1]))))
    assert all(len(mark) == NUM_BYTES for mark in marks)
    assert nearness(marks[0], marks[1]) > nearness(marks[0], marks[2])
    assert signature([]) == b""
