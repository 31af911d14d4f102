"""CalibrationRecord: what a calibration found, for which setting, with the numbers its claim rests on. JSON on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from search.calibration.binomial import at_most, upper_bound
from search.cgee import registry
from search.cgee.base import Draw

VERSION = 1
Loss = Literal["flip", "harm"]
"""flip: the rule changes the selected branch against full verification. harm: a flip where that one was right."""
T = TypeVar("T")


class RecordError(ValueError):
    """A record that cannot be read, supports no claim, or is for another setting; the message says which."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a record holds, besides how branches are drawn. template: hash of prompts and questions as rendered."""

    model: str
    dtype: str
    template: str
    family: str
    verifier: str


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """Of n decisions, one a problem, `thresholds` of `rule` lost k; so P(loss rate <= alpha) >= 1 - delta.

    thresholds: None if not even the strictest candidate was accepted; then nothing is skipped. skips, flips, harms: at
    these thresholds; harms is None where the right answers were not known. date: ISO. command: what made the record.
    RecordError when the numbers do not support the claim.
    """

    setting: Setting
    draw: Draw
    rule: str
    thresholds: Mapping[str, float] | None
    loss: Loss
    alpha: float
    delta: float
    n: int
    k: int
    skips: int
    flips: int
    harms: int | None
    date: str
    command: str
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise RecordError(f"calibration record has version {self.version!r}, this program reads {VERSION}")
        if self.loss not in get_args(Loss):
            raise RecordError(f"calibration record has loss {self.loss!r}; choices: {', '.join(get_args(Loss))}")
        if self.k != (self.flips if self.loss == "flip" else self.harms):
            raise RecordError(f"calibration record counts k={self.k}, but its {self.loss}s are another number")
        try:
            registry.grid(self.rule)
            if self.thresholds is not None:
                registry.create(self.rule, **self.thresholds)
            p_value = at_most(self.k, self.n, self.alpha)
        except (TypeError, ValueError) as error:
            raise RecordError(f"calibration record is not sound: {error}") from None
        if self.thresholds is not None and p_value > self.delta:
            raise RecordError(
                f"calibration record does not support its claim: {self.k} losses in {self.n} decisions have "
                f"probability {p_value:.3g} at a rate of {self.alpha:g}, more than delta={self.delta:g}"
            )

    @property
    def watched_rate(self) -> float:
        """Highest rate of flips that agrees with the record: alpha, or for `harm` the upper bound of the flips seen.

        Flips can be counted where the right answers are not known, harms cannot.
        """
        return self.alpha if self.loss == "flip" else upper_bound(self.flips, self.n, self.delta)

    def require(self, here: Setting) -> None:
        """RecordError that names the differing fields unless the record is for the setting `here`."""
        if found := differences(self.setting, here):
            raise RecordError(f"calibration record is for another setting: {'; '.join(found)}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def differences(recorded: object, here: object) -> tuple[str, ...]:
    """Each field in which two values of one dataclass differ, as text with both values."""
    names = [f.name for f in fields(recorded)]  # type: ignore[arg-type]
    pairs = [(name, getattr(recorded, name), getattr(here, name)) for name in names]
    return tuple(f"{name}: record {there!r}, here {this!r}" for name, there, this in pairs if there != this)


def save(record: CalibrationRecord, path: Path) -> None:
    """Write the record as JSON, whole or not at all."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_text(json.dumps(record.to_json(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def load(path: Path) -> CalibrationRecord:
    """Read a record; RecordError says what is wrong with the file."""
    where = f"calibration record {str(path)!r}"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except json.JSONDecodeError as error:
        raise RecordError(f"{where} is not JSON: {error.msg} (line {error.lineno})") from None
    if not isinstance(values, dict):
        raise RecordError(f"{where} must be a JSON object, not a {type(values).__name__}")
    if values.get("version") != VERSION:
        raise RecordError(f"{where} has version {values.get('version')!r}, this program reads {VERSION}")
    setting = built(Setting, values.get("setting"), f"{where}, setting")
    draw = built(Draw, values.get("draw"), f"{where}, draw")
    return built(CalibrationRecord, {**values, "setting": setting, "draw": draw}, where)


def built(cls: type[T], values: Any, where: str) -> T:
    """An instance from JSON values with exactly the fields of `cls`."""
    if not isinstance(values, dict):
        raise RecordError(f"{where} must be a JSON object, not a {type(values).__name__}")
    known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    wrong = [f"missing {name!r}" for name in sorted(known - set(values))]
    wrong += [f"unknown {name!r}" for name in sorted(set(values) - known)]
    if wrong:
        raise RecordError(f"{where}: {', '.join(wrong)}")
    try:
        return cls(**values)
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from None
