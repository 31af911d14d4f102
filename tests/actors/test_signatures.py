"""Signatures of roots: near prompts have near sketches, and a new tree goes where a near root is held."""

import asyncio

import pytest

from actors.block_index import BlockIndex
from actors.dispatcher import Dispatcher, PoolOptions
from actors.handles import InlineEngine, InlineIndex
from actors.placement import Branch, Load
from actors.rsbcm import RSBCM, Assignment
from engine.scripted import ScriptedEngine
from engine.sketch import SKETCH_BYTES, nearness, sketch
from engine.tokenizer import ByteCodec
from search.driver import TreeSearch
from search.prompts import ChatPrompt
from search.strategies import registry
from search.types import Problem
from tests.actors.batches import add as held
from tests.actors.batches import batch, drop, sign

TEMPLATE = list(range(500, 580))
PROBLEM, OTHER = list(range(1000, 1080)), list(range(2000, 2080))
HINTED = [*TEMPLATE, 7, 8, 9, *PROBLEM]


def add(index, actor, name, prompt, seq=0):
    return index.apply(batch(seq, held(name, len(prompt)), sign(name, sketch(prompt)), actor=actor))


def wave(tree, prompt, loads, signed=True):
    branch = Branch(tree, (tree.encode(),), (len(prompt),), 2, 16)
    return Assignment(tree, (branch,), loads, 2, sketch(prompt) if signed else b"")


def test_sketches_are_small_repeatable_and_about_the_common_trigrams():
    assert len(sketch(PROBLEM)) == SKETCH_BYTES and sketch(PROBLEM) == sketch(list(PROBLEM))
    assert nearness(sketch(TEMPLATE + PROBLEM), sketch(HINTED)) > 0.85
    assert 0.25 < nearness(sketch(TEMPLATE + PROBLEM), sketch(TEMPLATE + OTHER)) < 0.7
    assert abs(nearness(sketch(PROBLEM), sketch(OTHER))) < 0.35
    assert sketch([1, 2]) == b"" and nearness(b"", b"") == 0.0 and nearness(b"a", b"ab") == 0.0


def test_a_new_tree_goes_to_the_engine_with_a_near_root_and_it_is_no_hit():
    rsbcm = RSBCM()
    loads = {name: Load() for name in ("a", "b", "c")}
    add(rsbcm.index, "a", b"1", TEMPLATE + OTHER)
    add(rsbcm.index, "c", b"2", TEMPLATE + PROBLEM)
    near = rsbcm.assign(wave("t", HINTED, loads))[0]
    assert (near.actor, near.predicted_hit) == ("c", 0)
    assert rsbcm.stats()["semantic_home"] == 1
    plain = rsbcm.assign(wave("u", HINTED, loads, signed=False))[0]
    assert plain.actor != "c" and rsbcm.stats()["semantic_home"] == 1


def test_only_another_template_mate_is_no_near_root():
    rsbcm = RSBCM()
    loads = {name: Load() for name in ("a", "b")}
    add(rsbcm.index, "b", b"1", TEMPLATE + OTHER)
    assert rsbcm.assign(wave("t", TEMPLATE + PROBLEM, loads))[0].actor == "a"
    assert rsbcm.stats()["semantic_home"] == 0


def test_a_busy_engine_is_no_home_however_near():
    rsbcm = RSBCM()
    add(rsbcm.index, "b", b"1", TEMPLATE + PROBLEM)
    loads = {"a": Load(), "b": Load(rows=2)}
    assert rsbcm.assign(wave("t", HINTED, loads))[0].actor == "a"
    assert rsbcm.stats()["semantic_home"] == 0


def test_a_tree_that_has_a_home_keeps_it():
    rsbcm = RSBCM()
    loads = {name: Load() for name in ("a", "b")}
    first = rsbcm.assign(wave("t", HINTED, loads))[0].actor
    add(rsbcm.index, "b" if first == "a" else "a", b"1", TEMPLATE + PROBLEM)
    assert rsbcm.assign(wave("t", HINTED, loads))[0].actor == first


def test_signatures_go_with_their_keys():
    index = BlockIndex()
    add(index, "a", b"1", PROBLEM)
    assert index.nearest(sketch(PROBLEM), ["a"], 0.9) == "a"
    assert index.nearest(sketch(PROBLEM), ["b"], 0.9) is None
    index.apply(batch(1, drop(b"1")))
    assert index.nearest(sketch(PROBLEM), ["a"], 0.9) is None
    index.apply(batch(2, sign(b"9", sketch(PROBLEM))))
    assert index.stats()["signatures"] == 0
    add(index, "a", b"1", PROBLEM, seq=3)
    index.apply(batch(4, snapshot=True))
    assert index.stats()["signatures"] == 0


@pytest.mark.parametrize(("near_roots", "engine"), [(True, "engine-1"), (False, "engine-0")])
def test_the_dispatcher_signs_new_trees_only_where_that_is_of_use(near_roots, engine):
    engines = [ScriptedEngine(lambda path, served: "Answer: 42") for _ in range(2)]
    rsbcm = RSBCM()
    pool = Dispatcher(
        [InlineEngine(f"engine-{i}", lambda e=e: e, rsbcm) for i, e in enumerate(engines)],
        InlineIndex(rsbcm),
        ByteCodec(),
        "factory",
        engines[0].capabilities,
        PoolOptions(near_roots=near_roots),
    )
    problem = Problem("A bakery bakes 7 trays of 12 rolls. How many rolls are that?")
    add(rsbcm.index, "engine-1", b"1", pool.encode(ChatPrompt().messages(problem, "Be quick.")))
    found = asyncio.run(TreeSearch(pool, registry.create("greedy")).run(problem))
    assert set(found.engines) == {engine}
    assert rsbcm.stats()["semantic_home"] == int(near_roots)
    assert found.cost.predicted_hit == 0
