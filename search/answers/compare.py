"""When two answers are the same answer."""

from functools import lru_cache

from search.answers import symbolic
from search.answers.clock import read_time
from search.answers.convert import factor
from search.answers.latex import MAX_CHARS, plain
from search.answers.quantity import read_quantity
from search.answers.structure import Collection, as_union, read_collection, read_letter, split_name, text_form
from search.answers.units import agree, split_unit

_Pair = tuple[Collection | None, Collection | None]
_MAX_DEPTH = 6
_REMEMBERED = 8192  # a vote asks for the same few answers again and again


def canonical(answer: str, kind: str = "auto") -> str:
    """The voting key: exact value and unit (`3/4`, `5 km`), letter (`B`), time (`15:45`), else bare text.

    Equal keys are equivalent answers; equivalent answers may have different keys. `28%` is `7/25`. Of the kind
    `exact` the key is the text, white space at the ends aside.
    """
    return answer.strip() if kind == "exact" else _key(answer, percent=False)


@lru_cache(maxsize=_REMEMBERED)
def equivalent(a: str, b: str, *, percent: bool = False) -> bool:
    """Whether two answers say the same; symmetric, and true of any answer that is not blank and itself.

    Numbers are compared exactly; a missing unit or variable name agrees with any, two different ones do not.
    Known units convert (`1 km` is `1000 m`), times of day too (`3:45 PM` is `15:45`), numbers may be in words.
    `28%` equals `0.28` and not `28`; with `percent` the sign is dropped: `28%` equals `28` and not `0.28`.
    """
    if not a.strip() or not b.strip():
        return False
    if a.strip() == b.strip() or _key(a, percent) == _key(b, percent):
        return True
    if max(len(a), len(b)) > MAX_CHARS:
        return False
    return _same(plain(a), plain(b), percent, 0)


@lru_cache(maxsize=_REMEMBERED)
def _key(answer: str, percent: bool) -> str:
    if len(answer.strip()) > MAX_CHARS:
        return " ".join(answer.casefold().split())
    text = plain(answer)
    letter = read_letter(text)
    if letter:
        return letter
    time = read_time(text)
    if time:
        return time.key()
    quantity = read_quantity(text, percent)
    return quantity.key() if quantity else text_form(text)


def _same(a: str, b: str, percent: bool, depth: int) -> bool:
    """The rule of `equivalent` for two plain answers, or parts of them."""
    if _key(a, percent) == _key(b, percent):
        return True
    if depth > _MAX_DEPTH:
        return False
    times = read_time(a), read_time(b)
    if times[0] and times[1]:
        return times[0].matches(times[1])
    left, right = read_quantity(a, percent), read_quantity(b, percent)
    if left and right:
        return left.matches(right)
    a, b = as_union(a), as_union(b)
    collections = read_collection(a), read_collection(b)
    if collections[0] or collections[1]:
        return _same_members(a, b, collections, percent, depth)
    (name, value), (other_name, other) = split_name(a), split_name(b)
    contradict = name and other_name and name != other_name
    if (value, other) != (a, b) and not contradict and "=" not in value + other:
        return _same(value, other, percent, depth + 1)
    return _same_formula(a, b)


def _same_formula(a: str, b: str) -> bool:
    (a, left), (b, right) = sorted((split_unit(a), split_unit(b)), key=lambda split: split[0])
    if "%" in a + b:
        return False
    times = None if agree(left, right) else factor(left, right)
    if times is not None:
        a, left = rf"\frac{{{times.numerator}}}{{{times.denominator}}}({a})", right
    return agree(left, right) and symbolic.same(a, b)


def _same_members(a: str, b: str, collections: _Pair, percent: bool, depth: int) -> bool:
    """Tuples and intervals by item, with equal brackets; sets without order; a set of one is its member."""
    left, right = collections
    if left is None or right is None:
        return _same_single(a, b, collections, percent, depth)
    if left.ordered != right.ordered or left.brackets != right.brackets:
        return False
    if left.ordered:
        pairs = zip(left.items, right.items, strict=False)
        return len(left.items) == len(right.items) and all(_same(*pair, percent, depth + 1) for pair in pairs)
    return _covers(left, right, percent, depth) and _covers(right, left, percent, depth)


def _covers(left: Collection, right: Collection, percent: bool, depth: int) -> bool:
    """Every member of one set has its like in the other."""
    return all(any(_same(one, other, percent, depth + 1) for other in right.items) for one in left.items)


def _same_single(a: str, b: str, collections: _Pair, percent: bool, depth: int) -> bool:
    """One collection against something else: a named one, a set of one, or a union that equals it."""
    left, right = split_name(a)[1], split_name(b)[1]
    if (left, right) == (a, b):
        left, right = _only(collections[0], a), _only(collections[1], b)
    if (left, right) != (a, b):
        return _same(left, right, percent, depth + 1)
    return "\\cup" in a + b and symbolic.same(a, b)


def _only(collection: Collection | None, text: str) -> str:
    return collection.items[0] if collection and len(collection.items) == 1 else text
