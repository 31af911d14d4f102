"""Exact factors between units of one dimension: SI, US length and mass, time, cents."""

from fractions import Fraction

from search.answers.units import Unit

_FACTORS = {
    "length": {
        "mm": "0.001", "cm": "0.01", "m": "1", "km": "1000",
        "inch": "0.0254", "ft": "0.3048", "yd": "0.9144", "mi": "1609.344",
    },
    "mass": {"mg": "0.001", "g": "1", "kg": "1000", "lb": "453.59237", "oz": "28.349523125"},
    "time": {"ms": "0.001", "s": "1", "min": "60", "h": "3600", "day": "86400", "week": "604800"},
    "calendar": {"month": "1", "year": "12"},
    "dollar": {"cent": "0.01", "usd": "1"},
}  # fmt: skip
_BASE = {
    symbol: (dimension, 1, Fraction(factor))
    for dimension, factors in _FACTORS.items()
    for symbol, factor in factors.items()
}
_BASE |= {"ml": ("length", 3, Fraction("1e-6")), "l": ("length", 3, Fraction("1e-3"))}
_Dimension = frozenset[tuple[str, int]]


def _measure(unit: Unit) -> tuple[Fraction, _Dimension] | None:
    """(size, dimension) of one known unit, such as `ft^2` or `km/h`."""
    if len(unit) != 1:
        return None
    size, powers = Fraction(1), dict[str, int]()
    for sign, part in zip((1, -1), next(iter(unit)).split("/"), strict=False):
        symbol, _, power = part.partition("^")
        if symbol not in _BASE:
            return None
        dimension, degree, factor = _BASE[symbol]
        exponent = sign * int(power or 1)
        size *= factor**exponent
        powers[dimension] = powers.get(dimension, 0) + exponent * degree
    return size, frozenset(powers.items())


def factor(one: Unit, other: Unit) -> Fraction | None:
    """How many of the other unit make the one: km to m is 1000. None between unlike or unknown units."""
    left, right = _measure(one), _measure(other)
    return left[0] / right[0] if left and right and left[1] == right[1] else None
