"""A number with its sign, currency, percent mark and unit."""

import re
from dataclasses import dataclass
from fractions import Fraction

from search.answers.numerals import Scaled, read_decimal, read_ratio, read_repeating
from search.answers.units import Unit, agree, read_unit


def head_pattern(separators: str) -> str:
    """A regex for an unsigned number whose digits may be grouped by the separators; use with `re.VERBOSE`."""
    numeral = rf"(?:\d(?:[{separators}]?\d)*\.?|\.\d+)"
    part = rf"\{{\s*%s-?{numeral})\s*\}}"
    return rf"""(?:
        (?P<whole>\d{{1,9}})\s+(?P<part>[1-9]\d{{0,8}})\s?/\s?(?P<parts>\d{{1,9}})
      | (?P<units>\d{{1,9}})?\s*\\frac\s*{part % "(?P<top>"}\s*{part % "(?P<bottom>"}
      | (?P<over>{numeral})\s*/\s*(?P<under>{numeral})
      | (?:(?P<times>{numeral})\s*(?:\\times|\\cdot|[xX*])\s*)?
        10\s*\^\s*(?P<brace>\{{)?\s*(?P<power>[-+]?\d{{1,12}})(?!\d)(?(brace)\s*\}})
      | (?P<mantissa>{numeral})[eE](?P<exponent>[-+]?\d{{1,12}})(?!\d)
      | (?P<before>\d{{0,50}})\.(?P<after>\d{{0,50}})\\overline\s*\{{\s*(?P<period>\d{{1,50}})\s*\}}
      | (?P<decimal>{numeral}))"""


_LEAD = re.compile(r"(?:approximately|approx\.?|about|around|roughly|nearly|\\approx|~|=)\s*", re.IGNORECASE)
_MINUS_WORD = re.compile(r"(?:negative|minus)\s+(?=[$\d\\.])", re.IGNORECASE)
_CURRENCY = r"(?:US\$|[$€£¥₹]|USD|EUR|GBP)"
_HEAD = head_pattern(".,'_ ")
_QUANTITY = re.compile(rf"(?P<sign>[-+]?)\s*(?P<currency>{_CURRENCY}?)\s*(?P<inner>[-+]?)\s*{_HEAD}", re.VERBOSE)
_PERCENT = re.compile(r"\s*(?:%|(?:percent(?:age)?|per\s+cent|pct)(?:\s+points?)?(?![A-Za-z]))", re.IGNORECASE)
_MULTIPLIER = re.compile(r"\s*(thousand|million|billion|trillion)(?![A-Za-z])", re.IGNORECASE)
_ZEROS = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}


@dataclass(frozen=True)
class Quantity:
    """An exact value, as its key, and the unit it was given in."""

    value: str
    unit: Unit

    def key(self) -> str:
        return " ".join([self.value, *sorted(self.unit)])

    def matches(self, other: "Quantity") -> bool:
        """Same value, and units that do not contradict each other."""
        return self.value == other.value and agree(self.unit, other.unit)


def _mixed(whole: str, part: Scaled | None) -> Scaled | None:
    """A whole number followed by a proper fraction: `1 1/2`."""
    if part is None or not 0 < part.mantissa < 1:
        return None
    return Scaled(int(whole) + part.mantissa)


def _scientific(mantissa: str | None, power: str) -> Scaled | None:
    value = Scaled(Fraction(1)) if mantissa is None else read_decimal(mantissa)
    return None if value is None else Scaled(value.mantissa, value.exponent + int(power))


def read_head(found: re.Match[str]) -> Scaled | None:
    """The value of a match of `head_pattern`."""
    part = found.groupdict()
    if part["whole"]:
        return _mixed(part["whole"], read_ratio(part["part"], part["parts"]))
    if part["top"]:
        ratio = read_ratio(part["top"], part["bottom"])
        return _mixed(part["units"], ratio) if part["units"] else ratio
    if part["over"]:
        return read_ratio(part["over"], part["under"])
    if part["power"]:
        return _scientific(part["times"], part["power"])
    if part["mantissa"]:
        return _scientific(part["mantissa"], part["exponent"])
    if part["period"]:
        return read_repeating(part["before"], part["after"], part["period"])
    return read_decimal(part["decimal"])


def _read_tail(tail: str, currency: str, percent: bool) -> tuple[int, Unit] | None:
    """(power of ten, unit) that the words after the number add; None where they are no such words."""
    marked = _PERCENT.match(tail)
    if marked:
        words = read_unit(tail[marked.end() :])
        return None if words is None else (0 if percent else -2, frozenset())
    scaled = _MULTIPLIER.match(tail)
    words_at = scaled.end() if scaled else 0
    rest = tail[words_at:]
    attached = bool(rest) and not rest[0].isspace() and not scaled
    unit = read_unit(f"{currency} {rest}" if currency else rest, attached and not currency)
    return None if unit is None else (_ZEROS[scaled[1].lower()] if scaled else 0, unit)


def read_quantity(text: str, percent: bool = False) -> Quantity | None:
    """The quantity that a plain answer states. `28%` is 7/25, or 28 where `percent` drops the sign."""
    text = _MINUS_WORD.sub("-", _LEAD.sub("", text, count=1) if _LEAD.match(text) else text, count=1)
    if text[:1] == "(" and text[-1:] == ")" and not set("(),") & set(text[1:-1]):
        text = text[1:-1].strip()
    found = _QUANTITY.match(text)
    value = read_head(found) if found else None
    if found is None or value is None or (found["sign"] and found["inner"]):
        return None
    if found["currency"] and text[found.end() : found.end() + 1].isalpha():
        return None
    tail = _read_tail(text[found.end() :], found["currency"], percent)
    if tail is None:
        return None
    mantissa = -value.mantissa if "-" in found["sign"] + found["inner"] else value.mantissa
    return Quantity(Scaled(mantissa, value.exponent + tail[0]).key(), tail[1])
