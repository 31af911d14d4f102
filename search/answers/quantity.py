"""A number with its sign, currency, percent mark and unit."""

import re
from dataclasses import dataclass
from fractions import Fraction

from search.answers.convert import factor
from search.answers.numerals import Scaled, read_decimal, read_ratio, read_repeating
from search.answers.units import Unit, agree, leading_unit, read_unit
from search.answers.words import in_digits


def head_pattern(separators: str) -> str:
    """A regex for an unsigned number whose digits may be grouped by the separators; use with `re.VERBOSE`."""
    numeral = rf"(?:\d(?:[{separators}]?\d)*\.?|\.\d+)"
    part = rf"\{{\s*%s-?{numeral})\s*\}}"
    return rf"""(?:
        (?P<whole>\d{{1,9}})\s+(?P<part>[1-9]\d{{0,8}})\s?/\s?(?P<parts>\d{{1,9}})
      | (?:(?P<units>\d{{1,9}})\s*)?\\frac\s*{part % "(?P<top>"}\s*{part % "(?P<bottom>"}
      | (?P<over>{numeral})\s*/\s*(?P<under>{numeral})
      | (?:(?P<times>{numeral})\s*(?:\\times|\\cdot|[xX*])\s*)?
        10\s*\^\s*(?P<brace>\{{)?\s*(?P<power>[-+]?\d{{1,12}})(?!\d)(?(brace)\s*\}})
      | (?P<mantissa>{numeral})[eE](?P<exponent>[-+]?\d{{1,12}})(?!\d)
      | (?P<before>\d{{0,50}})\.(?P<after>\d{{0,50}})\\overline\s*\{{\s*(?P<period>\d{{1,50}})\s*\}}
      | (?P<decimal>{numeral}))"""


_LEAD = re.compile(
    r"(?:approximately|approx\.?|about|around|roughly|nearly|\\approx|~|=|an?(?=\s+\d))\s*", re.IGNORECASE
)
_MINUS_WORD = re.compile(r"(?:negative|minus)\s+(?=[$\d\\.])", re.IGNORECASE)
_CURRENCY = r"(?:US\$|[$€£¥₹]|USD|EUR|GBP)"
_PRICE = re.compile(  # `€12,50`: with a currency and two digits a comma is a decimal mark
    rf"([-+]?\s*{_CURRENCY}\s*[-+]?\d{{1,9}}),(\d\d)|([-+]?\d{{1,9}}),(\d\d)(?=\s*(?:[€£]|eur(?:os?)?\b))",
    re.IGNORECASE,
)
_HEAD = head_pattern(".,'_ ")
_QUANTITY = re.compile(rf"(?P<sign>[-+]?)\s*(?P<currency>{_CURRENCY}?)\s*(?P<inner>[-+]?)\s*{_HEAD}", re.VERBOSE)
_PERCENT = re.compile(r"\s*(?:%|(?:percent(?:age)?|per\s+cent|pct)(?:\s+points?)?(?![A-Za-z]))", re.IGNORECASE)
_MULTIPLIER = re.compile(r"\s*(hundred|thousand|million|billion|trillion)(?![A-Za-z])", re.IGNORECASE)
_MONEY_SUFFIX = re.compile(r"(k|m|bn?)(?![A-Za-z])", re.IGNORECASE)  # `$1.5k`; without a currency, `k` is a factor
_DOZEN = re.compile(r"\s+dozens?(?![\w-])", re.IGNORECASE)
_BELOW_ZERO = re.compile(r"(\d(?:.*\S)?)\s+below\s+(?:zero|0)", re.IGNORECASE | re.DOTALL)
_ZEROS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "k": 3, "m": 6, "b": 9, "bn": 9}
_NOTE = re.compile(r"\s\(([^()]*)\)$")
_BASE_NOTE = re.compile(r"\s*(?:mod|modulo|base)\b", re.IGNORECASE)  # part of the value
_NOTE_WORD = re.compile(r"(?<![\\A-Za-z])(?!(?:sin|cos|tan|log|exp|sqrt|mod)(?![A-Za-z]))[^\W\d_]{3,}")


@dataclass(frozen=True)
class Quantity:
    """An exact value, as its key, and the unit it was given in."""

    value: str
    unit: Unit

    def key(self) -> str:
        return " ".join([self.value, *sorted(self.unit)])

    def matches(self, other: "Quantity") -> bool:
        """Same value, and units that do not contradict each other; or the same amount in two units: 1 km, 1000 m."""
        if agree(self.unit, other.unit):
            return self.value == other.value
        times = factor(self.unit, other.unit)
        if times is None or "e" in self.value + other.value:
            return False
        return Fraction(self.value) * times == Fraction(other.value)


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
    scaled = (currency and _MONEY_SUFFIX.match(tail)) or _MULTIPLIER.match(tail)
    words_at = scaled.end() if scaled else 0
    rest = tail[words_at:]
    attached = bool(rest) and not rest[0].isspace() and not scaled
    unit = read_unit(f"{currency} {rest}" if currency else rest, attached and not currency)
    return None if unit is None else (_ZEROS[scaled[1].lower()] if scaled else 0, unit)


def number_end(text: str) -> int:
    """Where the number that the text opens with ends, percent sign or `million` included; 0 where none does."""
    found = _QUANTITY.match(text)
    if found is None:
        return 0
    after = next(filter(None, (word.match(text, found.end()) for word in (_PERCENT, _MULTIPLIER, _DOZEN))), None)
    return after.end() if after else found.end()


def split_note(text: str) -> tuple[str, str]:
    """(answer, note) where words in brackets end the text: `7 (seven)`; an empty note where none do."""
    found = _NOTE.search(text)
    if found is None or "\\" in found[1] or _BASE_NOTE.match(found[1]):
        return text, ""
    if _NOTE_WORD.search(found[1]) or leading_unit(found[1].split()):
        return text[: found.start()], found[1]
    return text, ""


def read_quantity(text: str, percent: bool = False) -> Quantity | None:
    """The quantity that a plain answer states. `28%` is 7/25, or 28 where `percent` drops the sign.

    Words in brackets after it are no part of it, except a known unit: `5 (km)`.
    """
    text, note = split_note(text)
    quantity = _read(text, percent)
    if quantity and note and not quantity.unit and leading_unit(note.split()) == len(note.split()):
        return Quantity(quantity.value, read_unit(note) or frozenset())
    return quantity


def _read(text: str, percent: bool) -> Quantity | None:
    text = _MINUS_WORD.sub("-", _LEAD.sub("", text, count=1) if _LEAD.match(text) else text, count=1)
    text = in_digits(text)
    below = _BELOW_ZERO.fullmatch(text)
    text = f"-{below[1]}" if below else text
    text = f"{text[1:].lstrip()}%" if text[:1] == "%" else text  # Arabic and Turkish
    price = _PRICE.match(text)
    if price and not text[price.end() : price.end() + 1].isdigit():
        text = text.replace(",", ".", 1)
    if text[:1] == "(" and text[-1:] == ")" and not set("(),") & set(text[1:-1]):
        text = text[1:-1].strip()
    found = _QUANTITY.match(text)
    value = read_head(found) if found else None
    if found is None or value is None or (found["sign"] and found["inner"]):
        return None
    dozen = _DOZEN.match(text, found.end())
    tail_at = text[dozen.end() if dozen else found.end() :]
    if found["currency"] and tail_at[:1].isalpha() and not _MONEY_SUFFIX.match(tail_at):
        return None
    tail = _read_tail(tail_at, found["currency"], percent)
    if tail is None:
        return None
    times = (-1 if "-" in found["sign"] + found["inner"] else 1) * (12 if dozen else 1)
    return Quantity(Scaled(times * value.mantissa, value.exponent + tail[0]).key(), tail[1])
