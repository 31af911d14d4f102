"""Linear layers with weights packed once, on CPUs.

A plain `F.linear` packs the weight at every call. A packed product is faster, and gives each row the same bits for any
number of rows from `least_rows` up (the plain one needs 16), which `LocalEngine` needs to be reproducible in any batch.
oneDNN serves float32 and, where the CPU has it, bfloat16; MKL serves float32. Which one is taken depends on the machine
alone, never on a measured time: engines of one kind of machine must give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

PLAIN_ROWS = 16
_PACKED_FOR = 256
_PROBES = (1, 2, 3, 5, 8, 15, 16, 17, 31, 64, 100)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A library's packed product. least_rows: rows a product must have for its bits not to depend on their number."""

    name: str
    dtypes: tuple[torch.dtype, ...]
    least_rows: int
    pack: Callable[[Tensor], Tensor]
    product: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    available: Callable[[torch.dtype], bool]


def _onednn_product(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
    return out


def _onednn_has(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _mkl_product(x: Tensor, packed: Tensor, shape: Tensor, bias: Tensor | None) -> Tensor:
    """The operator reads only the shape of the original weight when a packed one is given."""
    out: Tensor = torch.ops.mkl._mkl_linear(x, packed, shape, bias, x.numel() // x.shape[-1])
    return out


def _mkl_has(dtype: torch.dtype) -> bool:
    return bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]


KERNELS: tuple[Kernel, ...] = (
    Kernel(
        "onednn",
        (torch.float32, torch.bfloat16),
        2,
        lambda weight: torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR),
        _onednn_product,
        _onednn_has,
    ),
    Kernel(
        "mkl",
        (torch.float32,),
        1,
        lambda weight: torch.ops.mkl._mkl_reorder_linear_weight(weight, _PACKED_FOR),
        _mkl_product,
        _mkl_has,
    ),
)


class PackedLinear(nn.Module):
    """Stands in for an `nn.Linear` [N, K]; the original weight is not kept."""

    def __init__(self, linear: nn.Linear, kernel: Kernel) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self.kernel = kernel
        self._packed = kernel.pack(weight)
        self._shape = torch.zeros(1, dtype=weight.dtype).expand(weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel.product(x, self._packed, self._shape, self.bias)


def pack(model: nn.Module, kernels: Sequence[Kernel] = KERNELS) -> str | None:
    """Replace the model's linear layers by the first kernel that serves them all; its name, or None for none.

    Every distinct shape is probed first: equal to the plain product within rounding, equal bits for any row count.
    """
    linears = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    kinds = {(m.weight.device.type, m.weight.dtype) for m in linears.values()}
    if len(kinds) != 1:
        return None
    device, dtype = kinds.pop()
    shapes = {m.weight.shape: m for m in linears.values()}
    for kernel in kernels:
        if device != "cpu" or dtype not in kernel.dtypes or not kernel.available(dtype):
            continue
        if all(_sound(linear, kernel) for linear in shapes.values()):
            for name, linear in linears.items():
                parent, _, attribute = name.rpartition(".")
                setattr(model.get_submodule(parent), attribute, PackedLinear(linear, kernel))
            return kernel.name
    return None


def packed_by(model: nn.Module) -> Kernel | None:
    """The kernel that serves this model's linear layers; None: torch's own."""
    return next((m.kernel for m in model.modules() if isinstance(m, PackedLinear)), None)


def rows_of(linear: nn.Module, ids: Sequence[int]) -> Tensor:
    """Rows [len(ids), K] of a linear layer's weight [N, K]; of a packed one they are its products with unit vectors."""
    if not isinstance(linear, PackedLinear):
        rows: Tensor = linear.get_parameter("weight")[list(ids)]
        return rows
    size = linear.in_features
    columns = []
    for start in range(0, size, PLAIN_ROWS):
        units = torch.zeros(PLAIN_ROWS, size, dtype=linear._shape.dtype)
        here = min(PLAIN_ROWS, size - start)
        units[range(here), range(start, start + here)] = 1
        columns.append(linear.kernel.product(units, linear._packed, linear._shape, None)[:here, list(ids)])
    return torch.cat(columns).T.contiguous()


def _sound(linear: nn.Linear, kernel: Kernel) -> bool:
    try:
        packed = PackedLinear(linear, kernel)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, linear.in_features, generator=generator).to(linear.weight.dtype)
    whole, plain = packed(x), linear(x)
    tolerance = 1e-4 if x.dtype == torch.float32 else 2e-2
    if not torch.allclose(whole, plain, rtol=tolerance, atol=tolerance * float(plain.abs().max())):
        return False
    return all(torch.equal(packed(x[:rows]), whole[:rows]) for rows in _PROBES if rows >= kernel.least_rows)
