"""Linear layers with weights packed once by MKL, on CPUs in float32.

A plain `F.linear` packs the weight at every call. The packed product is faster, and gives each row the same bits for
any number of rows (the plain one only from 16 rows up), which `LocalEngine` needs to be reproducible in any batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_PACKED_FOR = 256
_PROBES = (1, 2, 3, 5, 8, 15, 16, 17, 31)


class PackedLinear(nn.Module):
    """Stands in for an `nn.Linear` [N, K]; the original weight is not kept."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, _PACKED_FOR)
        # The operator reads only the shape of the original weight when a packed one is given.
        self._shape = torch.zeros(1).expand(weight.shape)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        out: Tensor = torch.ops.mkl._mkl_linear(x, self._packed, self._shape, self.bias, rows)
        return out


def pack(model: nn.Module) -> bool:
    """Replace the model's linear layers where MKL serves them; False leaves the model as it was.

    Every distinct shape is probed first: equal to the plain product within rounding, equal bits for any row count.
    """
    linears = {name: m for name, m in model.named_modules() if type(m) is nn.Linear}
    if not linears or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return False
    if any(m.weight.device.type != "cpu" or m.weight.dtype != torch.float32 for m in linears.values()):
        return False
    shapes = {m.weight.shape: m for m in linears.values()}
    if not all(_sound(linear) for linear in shapes.values()):
        return False
    for name, linear in linears.items():
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, PackedLinear(linear))
    return True


def is_packed(model: nn.Module) -> bool:
    return any(isinstance(module, PackedLinear) for module in model.modules())


def _sound(linear: nn.Linear) -> bool:
    try:
        packed = PackedLinear(linear)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, linear.in_features, generator=generator)
    whole = packed(x)
    if not torch.allclose(whole, linear(x), rtol=1e-4, atol=1e-4 * float(whole.abs().max())):
        return False
    return all(torch.equal(packed(x[:rows]), whole[:rows]) for rows in _PROBES)
