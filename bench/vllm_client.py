"""vLLM with prefix caching, in an interpreter of its own, reached by JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.conditions import Outcome, Setup, UnavailableError
from bench.paged import paged_tokens
from bench.workload import Job, Point

_SCRIPT = Path(__file__).with_name("vllm_worker.py")


class Worker:
    """The other process. Times expansions itself, so that the pipe is not counted."""

    def __init__(self, setup: Setup) -> None:
        if setup.vllm_python is None:
            raise UnavailableError("no interpreter with vLLM given (--vllm-python)")
        if not os.access(setup.vllm_python, os.X_OK):
            raise UnavailableError(f"{setup.vllm_python} is not an executable file")
        weights, tokenizer = setup.folders()
        options = {
            "model": str(weights),
            "tokenizer": str(tokenizer),
            "dtype": setup.dtype,
            "max_model_len": max(setup.longest, 256),
            "enforce_eager": setup.vllm_eager,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process that writes to it
        self._process = subprocess.Popen(
            [str(setup.vllm_python), "-I", str(_SCRIPT), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(setup.threads),
        )
        self.settings: dict[str, Any] = self._receive()

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self._process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UnavailableError(f"the vLLM process ended: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "no output"


class VLLM:
    """Token ids in, greedy, fixed length, no detokenising; the prefix cache is emptied between rounds."""

    def __init__(self, setup: Setup, point: Point) -> None:
        self.counting = False
        self._worker: Worker = setup.vllm
        self._bytes = setup.kv_bytes_per_token
        self.settings = self._worker.settings

    def begin(self) -> None:
        self._worker.ask("reset")

    def expand(self, job: Job) -> Outcome:
        prompts = job.prompts()
        answer = self._worker.ask("expand", prompts=prompts, new_tokens=job.new_tokens)
        fed = sum(map(len, prompts)) - sum(answer["cached"])
        kv_bytes = paged_tokens(job, self.settings["block_size"]) * self._bytes
        return Outcome(answer["tokens"], answer["seconds"], fed, kv_bytes)

    def end(self) -> None:
        """The worker belongs to the setup."""


def _environment(threads: int) -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
