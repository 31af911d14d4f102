"""A search that does not come to its end says so, once, and still raises what ended it."""

import asyncio

import pytest

from engine.simulated import SimulatedEngine
from search.types import Event, Problem


def kinds_of(lab, on_event) -> list[str]:
    seen: list[str] = []

    def sink(event: Event) -> None:
        seen.append(event.kind)
        on_event(event)

    search = lab(SimulatedEngine(depth=4)).search("tot", on_event=sink)
    asyncio.run(search.run(Problem("What is 6 * 7?")))
    return seen


def test_a_search_that_ends_is_not_left(lab):
    seen = kinds_of(lab, lambda event: None)
    assert (seen[0], seen[-1]) == ("start", "finish") and "left" not in seen


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError, KeyboardInterrupt])
def test_whatever_ends_it_is_told_and_raised(lab, error):
    told: list[Event] = []

    def raising(event: Event) -> None:
        told.append(event)
        if event.kind == "wave":
            raise error("here")

    with pytest.raises(error):
        kinds_of(lab, raising)
    assert [event.kind for event in told].count("left") == 1
    assert told[-1].data == {"why": error.__name__}


def test_a_cancelled_search_leaves_nothing_at_engines_and_index(lab):
    one = lab(SimulatedEngine(depth=6), SimulatedEngine(depth=6))

    async def main() -> int:
        waves = asyncio.Event()
        search = one.search("tot", on_event=lambda event: waves.set() if event.kind == "wave" else None)
        task = asyncio.create_task(search.run(Problem("What is 6 * 7?")))
        await waves.wait()
        grown = one.pool.index.rsbcm.stats()["trees"]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.01)
        return grown

    assert asyncio.run(main()) == 1
    assert one.pool.index.rsbcm.stats()["trees"] == 0
    held = [engine.actor.engine.tree.num_tokens for engine in one.pool.engines.values()]
    assert sum(held) == 0


def test_a_sink_that_always_raises_hides_nothing(lab):
    def raising(event: Event) -> None:
        raise ValueError(event.kind)

    with pytest.raises(ValueError, match="start"):
        kinds_of(lab, raising)
