"""Blocking work beside an event loop, in a thread that never keeps the process from ending."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises; what is no `Exception` as a RuntimeError that names it, for a task that raises it
    would end its loop or look cancelled. Python cannot end a thread: if the caller gives up, its work runs on unheard.

    A thread of its own each time: a pool is waited for at exit, and one function that never returns would fill it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        error: Exception | None = None
        try:
            value = work()
        except Exception as raised:  # handed to the caller
            error = raised
        except BaseException as raised:
            error = RuntimeError(f"raised {type(raised).__name__}: {raised}")
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is waiting
            loop.call_soon_threadsafe(tell, value, error)

    threading.Thread(target=run, name="verifier", daemon=True).start()
    return await done
