"""An event loop in a thread of its own, so that blocking calls work inside notebooks and servers, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Started at first use; `close` ends it, and the next use starts another one.

    name: of the thread. starting: held while the loop starts or ends; an owner that holds it while it winds up keeps
    new work out.
    """

    def __init__(self, name: str, starting: threading.RLock) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._starting = starting

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """RuntimeError if the loop was closed meanwhile."""
        return self.wait(self.submit(work))

    def wait(self, future: Future[T]) -> T:
        """The result of submitted work; who leaves early (Ctrl-C) cancels it."""
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError("the orchestrator was closed while it was solving") from None
        except BaseException:
            future.cancel()
            raise

    def refuse_own_thread(self, what: str) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError(f"{what} cannot be called from an event callback: it would wait for itself")

    def cancel_all(self, first: Callable[[], None]) -> None:
        """Call `first` in the loop, then cancel what runs, so that nobody waits for it for ever."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(_cancel_all(first), self._loop).result()

    def close(self) -> None:
        with self._starting:
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop


async def _cancel_all(first: Callable[[], None]) -> None:
    first()
    running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
