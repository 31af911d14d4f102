"""The parts of the benchmark, sharing one stock model and one engine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Any

from bench.claims import errors, phrasing, pressure, sigma, speed, variants
from bench.claims.problems import HINTS, Question, load
from bench.claims.rows import Row
from bench.claims.skipping import GAP, RELATIVE, TAU
from bench.claims.ways import Ours, StockExactCache, StockNoKV
from bench.conditions import Setup
from bench.harness import ratio
from bench.workload import HINT_TOKENS, Point, Text

COUNTED_SEEDS = range(20)
SIGMA_PROBLEMS = 20
WARM_UP_PREFIX = 64


class Suite:
    """One method a part, each returning its rows. failures: what makes a float32 run fail."""

    def __init__(self, setup: Setup, options: argparse.Namespace, tell: Callable[[str], None]) -> None:
        self.setup = setup
        self.options = options
        self.tell = tell
        self.failures: list[str] = []
        self.point = Point(options.prefix, options.branches, options.new_tokens)
        self.config: dict[str, Any] = {
            "model": setup.source.name,
            "dtype": setup.dtype,
            "device": setup.device,
            "threads": setup.threads,
            "point": asdict(self.point),
            "hint_tokens": HINT_TOKENS,
            "rounds": options.rounds,
            "problems_of_each_set": options.problems,
            "hints": HINTS,
            "skip_rule": {"tau": TAU, "gap": GAP, "relative": RELATIVE},
        }

    @cached_property
    def ours(self) -> Ours:
        ours = Ours(self.setup, self.point)
        self.config["engine"] = ours.engine.settings
        return ours

    @cached_property
    def rounds(self) -> speed.Rounds:
        ways = {
            "no-kv": StockNoKV(self.setup, self.point),
            "exact-cache": StockExactCache(self.setup, self.point),
            "rksc": self.ours,
        }
        text = Text(self.setup.codec)
        small = text.job(Point(min(self.point.prefix, WARM_UP_PREFIX), self.point.branches, 2))
        return speed.alternate(ways, lambda: text.job(self.point), small, self.options.rounds, self.tell)

    def speed(self) -> list[Row]:
        rounds = self.rounds
        self.config["conditions"] = speed.CONDITIONS
        self.config["seconds"] = speed.seconds_rows(rounds)
        if not rounds.outputs_equal:
            self.failures.append("conditions draw different tokens")
        if rounds.verdicts()[0]:
            self.failures.append("conditions that read the same verification text give different verdicts")
        return speed.rows(rounds)

    def skipping(self) -> list[Row]:
        questions = self._gsm8k + load(self.options.data, "arc", self.options.problems)
        with self._ended_by_model():
            return errors.rows(errors.decide(self.ours.engine, questions, self.tell))

    def pressure(self) -> list[Row]:
        plan = pressure.Plan()
        self.config["pressure"] = asdict(plan)
        self.tell("pressure: books")
        books = pressure.counted(plan, COUNTED_SEEDS)
        self.tell("pressure: model")
        return pressure.rows(books, pressure.real(self.ours.engine, plan, range(self.options.seeds)))

    def phrasing(self) -> list[Row]:
        self.tell("phrasing")
        return phrasing.rows(self.ours.engine, self.setup.codec, self._gsm8k)

    def sigma(self) -> list[Row]:
        self.tell("sigma")
        return sigma.rows(self.setup.stock, self.setup.codec, self._gsm8k[:SIGMA_PROBLEMS])

    def variants(self) -> list[Row]:
        """The given model's own speed-up is that of the timed rounds."""
        seconds = self.rounds.seconds
        own = ratio(seconds["expand:no-kv"], seconds["expand:rksc"]).median
        found = variants.speed_ups(self.setup, self.point, min(self.options.rounds, 2), self.tell)
        return variants.rows(own, found)

    @cached_property
    def _gsm8k(self) -> list[Question]:
        return load(self.options.data, "gsm8k", self.options.problems)

    @contextmanager
    def _ended_by_model(self) -> Iterator[None]:
        """Branches end where the model ends them, unlike in the timed rounds, whose length is fixed."""
        codec = self.ours.engine.codec
        codec.eos_ids = self.setup.codec.eos_ids
        try:
            yield
        finally:
            codec.eos_ids = frozenset()
