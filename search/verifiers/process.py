"""One process that is asked and answers: bounded in time and output, and killed with all it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import IO

MOST_OUTPUT = 1 << 20
_PART = 1 << 16


class TooMuchOutputError(Exception):
    """The process writes without end."""


class Process:
    """The process leads a session of its own, so that all it started ends with it. OSError if it cannot start."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)

    def ask(self, question: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
        """(exit code, output, errors). TimeoutError after `timeout_s`, TooMuchOutputError past 1 MiB; may be killed
        from another thread meanwhile. The process is gone when this returns or raises.
        """
        deadline = time.monotonic() + timeout_s
        try:
            out, err = self._talk(question, deadline)
            self._until_exit(deadline)
        finally:
            self.kill()
            code = self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                with contextlib.suppress(OSError):
                    _known(stream).close()
        return code, out, err

    def kill(self) -> None:
        """End the whole session; harmless if it is gone. Until `ask` has waited for it, the pid is nobody else's."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _until_exit(self, deadline: float) -> None:
        """Returns once the process has ended, which is not waited for yet: what it left running must be ended first."""
        pause_s = 0.001
        while True:
            try:
                if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    return
            except ChildProcessError:  # somebody else in this program waits for every child
                return
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)

    def _talk(self, question: bytes, deadline: float) -> tuple[bytes, bytes]:
        """Write and read side by side until both outputs are closed; a process need not read what it is told."""
        stdin, left = _known(self._process.stdin), memoryview(question)
        found = {_known(stream).fileno(): bytearray() for stream in (self._process.stdout, self._process.stderr)}
        reading = set(found)
        with selectors.DefaultSelector() as waiting:
            for number in (stdin.fileno(), *found):
                os.set_blocking(number, False)
                waiting.register(number, selectors.EVENT_READ if number in found else selectors.EVENT_WRITE)
            while reading:
                ready = waiting.select(max(deadline - time.monotonic(), 0))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fd in found:
                        over = _read(key.fd, found[key.fd])
                    else:
                        left = _write(key.fd, left)
                        over = not left
                    if over:
                        waiting.unregister(key.fd)
                        reading.discard(key.fd)
                        if key.fd not in found:
                            stdin.close()
        out, err = found.values()
        return bytes(out), bytes(err)


def _write(number: int, left: memoryview) -> memoryview:
    """What is left to be written; nothing once the other side does not listen."""
    try:
        return left[os.write(number, left[:_PART]) :]
    except BlockingIOError:
        return left
    except (BrokenPipeError, ConnectionResetError):
        return left[:0]


def _read(number: int, into: bytearray) -> bool:
    """Whether the stream has ended."""
    part = os.read(number, _PART)
    into += part
    if len(into) > MOST_OUTPUT:
        raise TooMuchOutputError(f"wrote more than {MOST_OUTPUT} bytes")
    return not part


def _known(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise RuntimeError("the process was started with pipes")
    return stream
