"""Numbers in English words: `twenty-one`, `two hundred and five`, `five eighths`."""

import re

_ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_VALUES = {word: value for value, word in enumerate(_ONES + _TEENS, 1)}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS, 2)} | {"a": 1, "zero": 0}
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[-\s](?:{'|'.join(_ONES)}))?|{'|'.join(_TEENS)}|{'|'.join(_ONES)})(?![\w])"
_GROUP = rf"(?:(?:{_SMALL}|a)\shundred(?:\s(?:and\s)?{_SMALL})?|{_SMALL})"
_SCALED = "".join(rf"(?:(?:{_GROUP}|a)\s{scale}(?:,?\s(?:and\s)?(?={_GROUP}|a\s))?)?" for scale in reversed(_SCALES))
_ORDINALS = ["third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"]
_PARTS = {word: value for value, word in enumerate(_ORDINALS, 3)}
_PARTS |= {f"{word}th": value for value, word in enumerate(_TEENS[3:], 13)}
_PARTS |= {"twentieth": 20, "hundredth": 100, "thousandth": 1000}
_PART = "|".join(_PARTS)
_FRACTION = re.compile(
    rf"(?P<sign>(?:minus|negative)\s+|-)?(?:(?P<top>\d{{1,9}}|{_SMALL})[-\s](?P<bottom>{_PART})s(?![\w-])"
    rf"|(?:1|one|an?)[-\s](?P<single>{_PART})(?=\s*$|\sof\b))",
    re.IGNORECASE,
)
_LEAD = re.compile(
    rf"""(?P<sign>(?:minus|negative)\s+)?(?:
        (?P<top>one|two|three)[-\s](?P<bottom>half|thirds?|quarters?|fourths?)
      | (?P<half>a\shalf|half(?:\s(?:of\s)?an?(?=\s))?)
      | (?P<whole>zero|a(?=\sdozen\b)|(?=\w){_SCALED}(?:{_GROUP})?)(?P<more>\sand\s(?:a|one)[-\s]half)?
    )(?![\w-])""",
    re.VERBOSE | re.IGNORECASE,
)
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join([*_ONES, *_TEENS, *_TENS, *_SCALES])}|half|hundred|past)\b", re.IGNORECASE)
_BOTTOMS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4}


def has_number_word(text: str) -> bool:
    return bool(_NUMBER_WORD.search(text))


def is_part(word: str) -> bool:
    """Whether the word makes a fraction of the number before it: `eighths`."""
    return word.endswith("s") and word[:-1] in _PARTS


def _fraction(found: re.Match[str]) -> str:
    top = found["top"] or "1"
    value = int(top) if top.isdigit() else _value(top)
    return f"{'-' if found['sign'] else ''}{value}/{_PARTS[(found['bottom'] or found['single']).lower()]}"


def _value(words: str) -> int:
    total = group = 0
    for word in re.findall(r"[a-z]+", words.lower()):
        if word in _SCALES:
            total, group = total + group * _SCALES[word], 0
        elif word == "hundred":
            group *= 100
        elif word != "and":
            group += _VALUES[word]
    return total + group


def in_digits(text: str) -> str:
    """The text with the number that it opens with in digits: `minus five cm` -> `-5 cm`.

    Unchanged where another number word follows (`five past three`) or a name does (`Seven Samurai`).
    """
    fraction = _FRACTION.match(text)
    if fraction:
        return _fraction(fraction) + text[fraction.end() :]
    found = _LEAD.match(text)
    if found is None or not (found["top"] or found["half"] or found["whole"]):
        return text
    rest = text[found.end() :]
    if (rest and not rest[0].isspace()) or has_number_word(rest) or re.search(rf"[A-Z\d]|^\s(?:first|{_PART})$", rest):
        return text
    if found["top"]:
        number = f"{_VALUES[found['top'].lower()]}/{_BOTTOMS[found['bottom'].lower().rstrip('s')]}"
    elif found["half"]:
        number = "1/2"
    else:
        number = f"{_value(found['whole'])}{' 1/2' if found['more'] else ''}"
    return f"{'-' if found['sign'] else ''}{number}{rest}"
