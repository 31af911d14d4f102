"""Written numerals to exact values.

Marks: `1,000` is a thousand and `1.000` is one, as in English; a lone comma is never a decimal mark. Where
both marks stand, the last one is the decimal mark (`1.000,50` = `1,000.50`). Spaces, apostrophes, underscores
and lakh commas group digits too.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 500
MAX_MAGNITUDE = 1000  # powers of ten beyond this stay in scientific form
_FORMS = tuple(
    re.compile(form)
    for form in (
        r"(?P<whole>\d*)\.?(?P<part>(?<=\.)\d*)?",
        r"(?P<whole>[1-9]\d{0,2}(?:,\d{3})+)(?:\.(?P<part>\d*))?",
        r"(?P<whole>[1-9]\d?(?:,\d{2})+,\d{3})(?:\.(?P<part>\d*))?",
        r"(?P<whole>[1-9]\d{0,2}(?:[ '_]\d{3})+)(?:[.,](?P<part>\d*))?",
        r"(?P<whole>[1-9]\d{0,2}(?:\.\d{3})+),(?P<part>\d+)",
        r"(?P<whole>[1-9]\d{0,2}(?:\.\d{3}){2,})(?P<part>)",
    )
)


@dataclass(frozen=True)
class Scaled:
    """mantissa * 10**exponent; the exponent may be far too large to expand."""

    mantissa: Fraction
    exponent: int = 0

    def key(self) -> str:
        """One string for each value: `-3/4`, `1000`, `1e999999999`."""
        top, exponent = self.mantissa.numerator, self.exponent
        if top == 0:
            return "0"
        if self.mantissa.denominator == 1:
            digits = str(abs(top))
            bare = digits.rstrip("0")
            exponent += len(digits) - len(bare)
            if abs(len(bare) + exponent) > MAX_MAGNITUDE:
                return f"{'-' if top < 0 else ''}{bare}e{exponent}"
        return str(self.mantissa * Fraction(10) ** self.exponent)


def read_decimal(text: str) -> Scaled | None:
    """The value of a numeral without sign, exponent or fraction bar; None where it is not well formed."""
    if not any(map(str.isdigit, text)):
        return None
    text = text.removesuffix(".")
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is None:
            continue
        part = found["part"] or ""
        digits = re.sub(r"\D", "", found["whole"]) + part
        return Scaled(Fraction(int(digits)), -len(part)) if len(digits) <= MAX_DIGITS else None
    return None


def read_ratio(top: str, bottom: str) -> Scaled | None:
    """The value of top / bottom; either may have a minus."""
    values = []
    for text in (top, bottom):
        decimal = read_decimal(text.lstrip("-"))
        if decimal is None:
            return None
        value = decimal.mantissa * Fraction(10) ** decimal.exponent
        values.append(-value if text.startswith("-") else value)
    return Scaled(values[0] / values[1]) if values[1] else None


def read_repeating(whole: str, part: str, period: str) -> Scaled:
    """The value of `whole.part` followed by a period without end."""
    once, nines = int(whole + part or "0"), 10 ** len(period) - 1
    return Scaled((once + Fraction(int(period), nines)) / 10 ** len(part))
