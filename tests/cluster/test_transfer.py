"""KV between two engine actors: through the object store, and by Ray's direct transport (gloo: the one for CPUs)."""

import asyncio
import os
import signal

import pytest

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.cluster]

from actors.remote import RayTransport, start_engine, start_index
from actors.spec import EngineSpec
from actors.transfer import Mover
from engine.base import path_keys
from search.types import Boundary, Expansion, Outcome, Sampling
from tests.tiny import save_tiny_llama

PATH = (tuple(range(5, 85)),)


def order(path: tuple[tuple[int, ...], ...]) -> Expansion:
    return Expansion("e", "p", "n", path, 2, Sampling(max_tokens=12, boundary=Boundary.none()))


@pytest.mark.parametrize("direct", [None, "gloo"])
def test_a_branch_goes_on_elsewhere_without_prefill(cluster, tmp_path, direct):
    spec = EngineSpec(str(save_tiny_llama(tmp_path / "llama")), device="cpu", dtype="float32")
    index = start_index()
    a, b = (start_engine(name, spec, index, 1, 0, direct=direct is not None) for name in "ab")
    # What goes unused may fail: no group of actors, no transport.
    missing = Mover(RayTransport("gloo"), 1e6)

    async def run() -> tuple[bool, bool, Outcome, Outcome]:
        sample = (await a.expand([order(PATH)], "t"))[0].samples[0]
        child = (*PATH, sample.token_ids)
        key, end = path_keys(spec.fingerprint, child)[-1], sum(map(len, child)) - 1
        failed = await missing.bring(a, b, key, 0, end, 60.0)
        if direct is not None:
            from ray.experimental.collective import create_collective_group

            create_collective_group([a.actor, b.actor], backend="torch_gloo")
        came = await Mover(RayTransport(direct), 1e6).bring(a, b, key, 0, end, 60.0)
        there, here = await b.expand([order(child)], "u"), await a.expand([order(child)], "v")
        return failed, came, there[0], here[0]

    try:
        failed, came, there, here = asyncio.run(run())
    finally:
        for handle in (a, b, index):
            handle.kill()
    assert not failed
    assert came
    assert there.cost.prefilled == 0
    assert there.samples == here.samples


def test_an_engine_that_waits_for_a_hung_ones_kv_answers_other_calls(cluster):
    spec = EngineSpec("simulated")
    index = start_index()
    hung, sound = (start_engine(name, spec, index, 1, 0) for name in "ab")

    async def run() -> list[Outcome]:
        pid = await hung.ready()
        await sound.ready()
        os.kill(pid, signal.SIGSTOP)
        assert not await Mover(RayTransport(), 1e6).bring(hung, sound, b"key", 0, 80, 0.5)
        assert (await asyncio.wait_for(sound.stats(), 30.0))["name"] == "b"
        return await asyncio.wait_for(sound.expand([order(PATH)], "t"), 30.0)

    try:
        (outcome,) = asyncio.run(run())
    finally:
        for handle in (hung, sound, index):
            handle.kill()
    assert len(outcome.samples) == 2
