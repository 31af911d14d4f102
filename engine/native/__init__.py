"""The engine's own CPU kernels: compiled once on the machine they run on, where it has a C++ compiler.

Without one (or with RKSC_NATIVE=0) torch's operators serve instead: right, slower, and a row's bits may then depend on
its batch.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from engine.models import cache_folder
from engine.tokenizer import written_once

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-shared", "-fPIC")
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_P, _L, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, list[Any]] = {
    "attend": [_P, _L, _P, _P, _L, _P, _L, _L, _I, _I, _I, _F, _L, _P, _L, _P, _P, _L, _I, _I],
    "add_norm": [_P, _P, _P, _P, _L, _I, _F],
    "rotate": [_P, _L, _P, _P, _L, _I, _I],
    "silu_mul": [_P, _P, _L, _I],
}


class Kernels:
    """The kernels for one dtype. Tensors are on the CPU, of that dtype, contiguous unless said otherwise."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._attend, self._add_norm, self._rotate, self._silu_mul = (
            _function(library, name, dtype) for name in _SIGNATURES
        )
        self._workers = ThreadPoolExecutor(64, "rksc-heads")

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        plan: tuple[Tensor, Tensor, Tensor],
        numbers: tuple[int, float, int | None],
    ) -> Tensor:
        """Put keys and values in their places, then attend. query [N, H_q, D]; key, value [N, H_kv, D], heads adjacent.

        plan: jobs [J, 9] and places [N, 4], as `Job` and `Place` in kernels.cpp, and positions [N]; all int64. numbers:
        layer, scale, window (None: all positions). Returns [N, H_q, D].
        """
        (tokens, heads, dim), kv_heads = query.shape, key.shape[1]
        (jobs, places, positions), (layer, scale, window) = plan, numbers
        out = torch.empty(tokens, heads, dim, dtype=query.dtype)
        arguments = (
            *(query.data_ptr(), query.stride(0), key.data_ptr(), value.data_ptr(), key.stride(0)),
            *(out.data_ptr(), heads * dim, tokens, kv_heads, heads // kv_heads, dim, scale, window or 0),
            *(jobs.data_ptr(), len(jobs), places.data_ptr(), positions.data_ptr(), layer),
        )
        parts = min(torch.get_num_threads(), kv_heads)
        if parts == 1:
            self._attend(*arguments, 0, kv_heads)
            return out
        cuts = [kv_heads * i // parts for i in range(parts + 1)]
        under_way = [self._workers.submit(self._attend, *arguments, a, b) for a, b in pairwise(cuts)]
        for part in under_way:
            part.result()
        return out

    def add_norm(self, x: Tensor, more: Tensor | None, weight: Tensor, eps: float) -> Tensor:
        """x [N, K] += more, in place; its RMS norm times weight [K]."""
        out = torch.empty_like(x)
        added = None if more is None else more.data_ptr()
        self._add_norm(x.data_ptr(), added, weight.data_ptr(), out.data_ptr(), x.shape[0], x.shape[1], eps)
        return out

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> None:
        """Rotary positions for the first `heads` heads of x [N, H, D], in place; cos, sin [N, D]."""
        n, _, dim = x.shape
        self._rotate(x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), n, heads, dim)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up [N, 2 K] -> [N, K]."""
        n, both = gate_up.shape
        out = torch.empty(n, both // 2, dtype=gate_up.dtype)
        self._silu_mul(gate_up.data_ptr(), out.data_ptr(), n, both // 2)
        return out


def _function(library: ctypes.CDLL, name: str, dtype: torch.dtype) -> Callable[..., None]:
    function = getattr(library, f"rksc_{name}_{_DTYPES[dtype]}")
    function.argtypes, function.restype = _SIGNATURES[name], None
    return cast(Callable[..., None], function)


@cache
def kernels(dtype: torch.dtype) -> Kernels | None:
    """The kernels for a dtype; None, with one line in the log, where they cannot be had."""
    if dtype not in _DTYPES or os.environ.get("RKSC_NATIVE", "1") == "0":
        return None
    try:
        return Kernels(_library(), dtype)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.warning("the engine's own CPU kernels are not used: %s", error)
        return None


@cache
def _library() -> ctypes.CDLL:
    compiler = next((path for name in _compilers() if (path := shutil.which(name))), None)
    if compiler is None:
        raise RuntimeError(f"no C++ compiler among {', '.join(_compilers())}")
    known = blake2b(SOURCE.read_bytes(), digest_size=12)
    for part in (*FLAGS, compiler, platform.machine(), _cpu()):
        known.update(part.encode())
    folder = cache_folder() / "native" / known.hexdigest()
    if not folder.is_dir():
        with written_once(folder) as temporary:
            command = [compiler, *FLAGS, "-o", str(temporary / "kernels.so"), str(SOURCE)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                raise RuntimeError(f"{compiler} failed: {done.stderr.strip()[:400]}")
    return ctypes.CDLL(str(folder / "kernels.so"))


def _compilers() -> tuple[str, ...]:
    return tuple(name for name in (os.environ.get("CXX"), "g++", "clang++", "c++") if name)


def _cpu() -> str:
    """What the compiler's -march=native depends on, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
