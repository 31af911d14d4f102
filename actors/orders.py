"""Orders under way, and the queue in which those that are planned for one engine wait for its credits."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from actors.placement import Branch, Placed
from search.types import Expansion, Outcome


@dataclass(slots=True, eq=False)
class Booking:
    """A copy of an order at one engine. request: what the engine knows it by; empty while it waits here."""

    placed: Placed
    rows: int
    prefill_tokens: int
    request: str = ""


class Flow:
    """The orders of one wave: hands each outcome on, once, and says when all are back."""

    def __init__(self, orders: Sequence[Expansion], deliver: Callable[[Outcome], None]) -> None:
        self.deliver = deliver
        self.left = len(orders)
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.orders: dict[str, Order] = {}
        if not orders:
            self.over.set_result(None)

    def land(self, outcome: Outcome) -> None:
        try:
            self.deliver(outcome)
        except Exception as error:  # of whoever takes the outcome: this search must know, the others go on
            self.fail(error)
        self.left -= 1
        if not self.left and not self.over.done():
            self.over.set_result(None)

    def fail(self, error: BaseException) -> None:
        """What went wrong is no engine's failure; whoever waits for the wave gets it."""
        if not self.over.done():
            self.over.set_exception(error)


@dataclass(slots=True, eq=False)
class Order:
    """One expansion with its history. at: where copies of it are; more than one while a straggler is hedged. placed:
    whether it was planned for an engine before."""

    work: Expansion
    branch: Branch
    flow: Flow
    alone: bool
    ready_s: float
    attempts: int = 0
    avoid: set[str] = field(default_factory=set)
    error: str = ""
    done: bool = False
    hedged: bool = False
    placed: bool = False
    recalled: bool = False
    at: dict[str, Booking] = field(default_factory=dict)

    @property
    def unplaced(self) -> bool:
        """Whether an engine is to be found for it: it is not done, and nowhere yet."""
        return not self.done and not self.at

    def again(self, name: str, error: str, counted: bool = True) -> None:
        """What failed goes alone next time, so that a bad branch fails by itself, and elsewhere if it can."""
        self.attempts += counted
        self.alone = True
        self.avoid.add(name)
        self.error = error


@dataclass(slots=True, eq=False)
class Call:
    """Orders sent to an engine together. rows, prefill_tokens, steps: what it may come to. is_late: it takes longer
    than the engine's rates say."""

    engine: str
    orders: list[Order]
    rows: int
    prefill_tokens: int
    steps: int
    task: asyncio.Task[None] | None = None
    late: asyncio.TimerHandle | None = None
    is_late: bool = False
    over: bool = False


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """batch_rows: rows an engine decodes at once. moves: whether an idle engine may take what waits for another.

    cancels: whether engines can end orders under way. See `actors.dispatcher.PoolOptions` for the others.
    """

    attempts: int
    batch_rows: int
    call_timeout_s: float
    patience_s: float
    moves: bool
    cancels: bool
    hedging: bool


class ReadyQueue:
    """Deficit round robin: problems take turns of `quantum` rows, first come, first served within a problem.

    A wave that fills an engine once goes out whole, and none waits for more than one turn of each other problem.
    """

    def __init__(self, quantum: int) -> None:
        self._quantum = quantum
        self._problems: OrderedDict[str, deque[Order]] = OrderedDict()
        self._turn = quantum
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Order]:
        return (order for orders in self._problems.values() for order in orders)

    def put(self, order: Order) -> None:
        self._problems.setdefault(order.work.problem_id, deque()).append(order)
        self._count += 1

    def take(self, rows: int, whole: bool) -> list[Order]:
        """Orders for one call of `rows` rows; whole: none that would exceed them, unless it is the only one.

        Orders of one id (two searches of one problem) go in different calls, and so does one that goes alone.
        """
        taken: list[Order] = []
        ids: set[str] = set()
        while self._count and rows > 0:
            order = self._first()
            too_many = whole and order.work.n > rows
            if taken and (order.alone or too_many or order.work.id in ids):
                break
            self._pop(order)
            taken.append(order)
            ids.add(order.work.id)
            rows -= order.work.n
            if order.alone:
                break
        return taken

    def last(self) -> Sequence[Order]:
        """The orders of the problem that will wait longest, the first one first."""
        return next(reversed(self._problems.values())) if self._count else ()

    def discard(self, order: Order) -> None:
        """Take an order out, wherever it stands."""
        orders = self._problems[order.work.problem_id]
        orders.remove(order)
        self._count -= 1
        if not orders:
            self._end_turn(order.work.problem_id)

    def _first(self) -> Order:
        return next(iter(self._problems.values()))[0]

    def _pop(self, order: Order) -> None:
        problem = order.work.problem_id
        orders = self._problems[problem]
        orders.popleft()
        self._count -= 1
        self._turn -= order.work.n
        if not orders:
            self._end_turn(problem)
        elif self._turn <= 0:
            self._problems.move_to_end(problem)
            self._turn = self._quantum

    def _end_turn(self, problem: str) -> None:
        if next(iter(self._problems)) == problem:
            self._turn = self._quantum
        del self._problems[problem]
