"""Units after a number: known ones by symbol, any other trailing words as a bag of nouns.

A missing unit agrees with every unit. `convert` has the factors between known ones.
"""

import re

from search.answers.words import has_number_word, is_part

Unit = frozenset[str]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ALIASES = {
    "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "m meter metre",
    "km": "km kilometer kilometre", "inch": "inch inches", "ft": "ft foot feet", "yd": "yd yard",
    "mi": "mi mile", "mg": "mg milligram", "g": "g gram gramme", "kg": "kg kilogram kilo",
    "lb": "lb lbs pound", "oz": "oz ounce", "s": "s sec second", "min": "min mins minute",
    "ms": "ms millisecond",
    "h": "h hr hrs hour", "day": "day", "week": "week wk", "month": "month", "year": "year yr yrs",
    "l": "l L liter litre", "ml": "ml milliliter millilitre", "mi/h": "mph", "km/h": "kmh kph",
    "usd": "$ usd dollar US$", "eur": "€ eur euro", "gbp": "£ gbp", "jpy": "¥ jpy yen", "inr": "₹ inr rupee",
    "cent": "¢ cent", "degree": "degree deg", "rad": "rad radian", "am": "am a.m", "pm": "pm p.m",
    "n": "N newton", "j": "J joule", "w": "W watt", "v": "V volt", "k": "K kelvin", "hz": "hz hertz",
    "gal": "gal gallon", "qt": "qt quart", "ha": "ha hectare",
    "kb": "kb kilobyte", "mb": "mb megabyte", "gb": "gb gigabyte",
}  # fmt: skip
_KNOWN = {alias: symbol for symbol, aliases in _ALIASES.items() for alias in aliases.split()}
_IRREGULAR = {"people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse"}
_EMPTY = _words(
    "a an the of in on at to by for from with and is are was were be will would total all altogether overall"
    " left remaining each every there that this these it he she they i we you his her its their my our answer"
    " final long old tall wide high deep away ago unit units exactly only"
)
_FUNCTIONS = _words("sin cos tan cot sec csc log ln exp sqrt mod frac pi arcsin arccos arctan or not")
_TOKEN = re.compile(r"(?:[^\W\d_]|[$€£¥₹¢'])+(?:\^\{?[23]\}?|[23](?!\w))?|/|\S")
_TEMPERATURE = re.compile(r"\bdegrees?\s+([cf])(?:elsius|ahrenheit)?(?![a-z])", re.IGNORECASE)
_POWER = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cubed": "^3"}
_OPERATIONS = _words("over divided times plus minus multiplied out and")  # before a number word
_APPLIED = _words("squared cubed factorial")  # to the number itself, where no unit follows


def _changes_value(tokens: list[str]) -> bool:
    """Whether the words are part of the number: `eighths`, `squared`, `over six`."""
    first = tokens[0].lower() if tokens else ""
    return is_part(first) or first in _APPLIED or (first in _OPERATIONS and has_number_word(" ".join(tokens)))


def _singular(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 4 and word.endswith(("ses", "xes", "ches", "shes")):
        return word[:-2]
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def _symbol(token: str) -> str | None:
    """The symbol of a known unit, power included: `feet^2` -> `ft^2`."""
    base = token.rstrip("^{}23")
    power = "".join(digit for digit in token[len(base) :] if digit.isdigit())
    symbol = _KNOWN.get(base)
    if symbol is None and len(base) > 1:
        symbol = _KNOWN.get(base.lower()) or _KNOWN.get(_singular(base.lower()))
    return symbol + (f"^{power}" if power else "") if symbol else None


def _measure(tokens: list[str]) -> tuple[str, int] | None:
    """(symbol, tokens used) of the known unit that the tokens open with."""
    if not tokens:
        return None
    before = _POWER.get(tokens[0].lower())
    if before and len(tokens) > 1:
        if tokens[1] == "in":
            return "inch" + before, 2
        symbol = _symbol(tokens[1]) or (_singular(tokens[1].lower()) if tokens[1].isalpha() else None)
        return (("" if symbol == "unit" else str(symbol)) + before, 2) if symbol else None
    if (tokens[0] == "in" and len(tokens) == 1) or tokens[0].startswith("in^"):
        return "inch" + tokens[0][2:].replace("{", "").replace("}", ""), 1
    symbol = _symbol(tokens[0])
    if symbol is None:
        return None
    after = _POWER.get(tokens[1].lower()) if len(tokens) > 1 else None
    return (symbol + after, 2) if after else (symbol, 1)


def _is_word(token: str) -> bool:
    """Short ASCII tokens are variables unless known; so are function names, digits and operators."""
    if token == "/" or _symbol(token) or token.lower() in _EMPTY | _POWER.keys() or token.startswith("in^"):
        return True
    if not token.replace("'", "").isalpha() or token.lower() in _FUNCTIONS:
        return False
    return len(token) > 2 or not token.isascii()


def _celsius_or_fahrenheit(found: re.Match[str]) -> str:
    return "celsius" if found[1] in "cC" else "fahrenheit"


def _is_letter(token: str) -> bool:
    return len(token) == 1 and token.isalpha()


def read_unit(phrase: str, attached: bool = False) -> Unit | None:
    """The unit that the words after a number state: empty when none, None when they are not a unit at all.

    `attached`: no space before the phrase; then a single letter is a factor (`5m`), never a unit.
    """
    tokens = _TOKEN.findall(_TEMPERATURE.sub(_celsius_or_fahrenheit, phrase.replace("-", " ")))
    if not all(map(_is_word, tokens)):
        return None
    if attached and tokens and tokens[0].isascii() and (_symbol(tokens[0]) is None or _is_letter(tokens[0])):
        return None
    measured = _measure(tokens)
    if _changes_value(tokens[measured[1] :] if measured else tokens):
        return None
    if measured is None:
        return frozenset(_singular(word.lower()) for word in tokens if word.lower() not in _EMPTY | {"/"})
    symbol, used = measured
    rest = tokens[used:]
    if len(rest) > 1 and rest[0].lower() in ("/", "per"):
        below = _measure(rest[1:])
        symbol += "/" + (below[0] if below else _singular(rest[1].lower()))
    return frozenset((symbol,))


_TRAILING_WORDS = re.compile(r"(?<=[\d})\]A-Za-z])((?:\s+[A-Za-z]{2,20}(?:\^\{?[23]\}?)?){1,6})$")


def split_unit(text: str) -> tuple[str, Unit]:
    """(expression, unit) of `2\\pi cm`; a text of words alone is left whole."""
    found = _TRAILING_WORDS.search(text)
    unit = read_unit(found[1]) if found else None
    if found is None or unit is None or not re.search(r"[\d\\]", text[: found.start()]):
        return text, frozenset()
    return text[: found.start()], unit


def leading_unit(words: list[str]) -> int:
    """How many of the words are the known unit that they open with: 3 of `miles per hour on average`."""
    measured = _measure(words)
    if measured is None:
        return 0
    used = measured[1]
    if used < len(words) and words[used].lower() in ("celsius", "fahrenheit"):
        return used + 1
    if used + 1 < len(words) and words[used].lower() in ("/", "per"):
        below = _measure(words[used + 1 :])
        return used + 1 + (below[1] if below else 1)
    return used


def agree(left: Unit, right: Unit) -> bool:
    """Two units agree where one says no more than the other; a missing one says nothing."""
    return left <= right or right <= left
