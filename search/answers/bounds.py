"""What may be handed to the computer algebra system: small, mathematical, and cheap to evaluate.

Nothing interrupts a computation there, so its cost is bounded by the form of the input alone.
"""

import math
import re

MAX_LENGTH = 160
MAX_NESTING = 6
MAX_LITERAL = 30  # digits
MAX_POWER = 1000  # product of all integers in exponents, of an expression without variables
MAX_VARIABLE_POWER = 64  # the same, of one with variables
MAX_POWERS = 8
MAX_FUNCTIONS = 8  # one only with an inverse function: folding nested constants takes minutes

_COMMANDS = re.compile(
    r"frac|sqrt|binom|mathbb|begin|end|pi|infty|cdot|times|div|pm|cup|cap|setminus|emptyset|varnothing"
    r"|(?:arc)?(?:sin|cos|tan)|cot|sec|csc|ln|log|theta|alpha|beta|gamma|lambda|mu|omega|phi|sigma|tau|rho|delta"
    r"|leq?|geq?|lt|gt|neq?|in|[lr]?vert|mid|[lr](?:floor|ceil)"
)
_BOUNDED_ONLY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc|ln|log|binom)|!")
_FUNCTION = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc|ln|log)(?![A-Za-z])|\|")
_INVERSE = re.compile(r"\\(?:arc|(?:sin|cos|tan|cot|sec|csc)\s*\^\s*\{?\s*-)")
_SET_OPERATION = re.compile(r"\\(?:cup|cap|setminus)(?![A-Za-z])")
_SET_NAME = re.compile(r"\\mathbb\s*\{[A-Z]\}")
_ALPHABET = re.compile(r"[A-Za-z0-9\s\\{}()\[\]|+\-*/^_.,<>=!&]*")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{[bpv]?matrix\}")
_WORD = re.compile(r"[A-Za-z]+")
_FACTORIAL = re.compile(r"(?<![\d.])\d{1,2}!(?![!\d])")
_BINOMIAL = re.compile(r"\\binom\s*\{\d{1,3}\}\s*\{\d{1,3}\}")
_ROOT = re.compile(r"\\sqrt\s*\[(?!\s*(?:\d{1,2}|[a-z])\s*\])")
_SHALLOW = re.compile(r"[^^]*[A-Za-z]\s*\^[^^]*")  # one nested power, of a variable
_PLAIN_DECIMAL = re.compile(r"\s*-?\d{0,3}\.\d{1,4}\s*")


def exponents(text: str) -> list[str] | None:
    """The operand of every `^`, outermost first; None where one is not in braces or a single character."""
    found = []
    for at in (index for index, mark in enumerate(text) if mark == "^"):
        rest = text[at + 1 :].lstrip()
        if not rest.startswith("{"):
            command = _COMMAND.match(rest)
            found.append(command[0] if command else rest[:1])
            if found[-1] in ("", "^", "(", "[", "-", "\\"):
                return None
            continue
        operand = _group(rest)
        if operand is None:
            return None
        found.append(operand)
    return found


def _group(text: str) -> str | None:
    """What is inside the braces that the text opens with; None where they do not close."""
    depth = 0
    for end, mark in enumerate(text):
        depth += (mark == "{") - (mark == "}")
        if depth == 0:
            return text[1:end]
    return None


def _small_powers(text: str) -> bool:
    """Exponents are few, shallow, and their integers multiply to a small number: no tower grows from them."""
    operands = exponents(text)
    if operands is None or len(operands) > MAX_POWERS:
        return False
    for operand in operands:
        if "!" in operand or "\\binom" in operand:
            return False
        if "." in operand and not _PLAIN_DECIMAL.fullmatch(operand):
            return False
        if "^" in operand and (not _SHALLOW.fullmatch(operand) or _BOUNDED_ONLY.search(text)):
            return False
    product = math.prod(max(1, int(digits)) for operand in operands for digits in re.findall(r"\d+", operand))
    variables = _WORD.search(_COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text)))
    return product <= (MAX_VARIABLE_POWER if variables else MAX_POWER)


def _nesting(text: str) -> int:
    depth = deepest = 0
    for mark in text:
        depth += (mark in "([{") - (mark in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _is_mathematical(text: str) -> bool:
    """No prose: words of three letters are no product of variables, nor are two letters on their own."""
    bare = _COMMAND.sub(" ", _ENVIRONMENT.sub(" ", text))
    if any(len(word) > 2 for word in _WORD.findall(bare)):
        return False
    return len(text) == 1 or bool(re.search(r"[\d+\-*/^=<>(\\|]", text))


def _plain_set(text: str) -> bool:
    """Where sets are combined, their ends are numbers without functions, powers and variables."""
    if not _SET_OPERATION.search(text):
        return True
    variables = _WORD.search(_COMMAND.sub(" ", _SET_NAME.sub(" ", text)))
    return not (variables or "^" in text or _BOUNDED_ONLY.search(text))


def admissible(text: str) -> bool:
    """Whether an expression, in the spelling that `symbolic.spell` gives, has bounded cost."""
    if len(text) > MAX_LENGTH or not text or not _ALPHABET.fullmatch(text) or _nesting(text) > MAX_NESTING:
        return False
    if not all(map(_COMMANDS.fullmatch, _COMMAND.findall(_ENVIRONMENT.sub(" ", text)))):
        return False
    if re.search(rf"\d{{{MAX_LITERAL + 1}}}", text) or _ROOT.search(text):
        return False
    for mark, bounded in (("!", _FACTORIAL), ("\\binom", _BINOMIAL)):
        if text.count(mark) != len(bounded.findall(text)):
            return False
    if len(_FUNCTION.findall(text)) > (1 if _INVERSE.search(text) else MAX_FUNCTIONS):
        return False
    return _is_mathematical(text) and _small_powers(text) and _plain_set(text)
