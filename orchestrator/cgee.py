"""CGEE level 1 for an orchestrator: which rule is meant, whether its record fits, one gate a rule for all searches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from actors.spec import EngineSpec
from engine.base import Codec, begin
from engine.models import SIMULATED
from orchestrator.config import Config, UsageError
from search.calibration.alarm import BettingAlarm
from search.calibration.record import CalibrationRecord, RecordError, Setting, load
from search.cgee import registry
from search.cgee.base import SkipRule
from search.cgee.gate import Gate
from search.prompts import ANSWER_QUESTION, STEP_QUESTION, ChatPrompt
from search.types import Problem

AUTO, CALIBRATED, OFF = "auto", "calibrated", "off"


class Gates:
    """The gates of one orchestrator: one a rule, so that the audits of all its searches add up.

    setting: what a record must be for; asked once, when a record is used. UsageError for an unknown rule, a record
    that cannot be read, and one for another setting.
    """

    def __init__(self, config: Config, setting: Callable[[], Setting]) -> None:
        self._config = config
        self._setting = setting
        self._made: dict[str, Gate | None] = {}
        self._making = threading.Lock()
        self._name(config.cgee)
        self._record = None if config.cgee_record is None else _loaded(config.cgee_record)

    def gate(self, asked: str | SkipRule | None = None) -> Gate | None:
        """The gate of a rule by name, or of a rule of the user's own; None: as configured. None means verify all."""
        if asked is None:
            asked = self._config.cgee
        if not isinstance(asked, str):
            return Gate(_own_rule(asked))
        name = self._name(asked)
        with self._making:
            if name not in self._made:
                self._made[name] = self._make(name)
            return self._made[name]

    def _name(self, asked: str) -> str:
        if asked == AUTO:
            return OFF if self._config.cgee_record is None else CALIBRATED
        if asked not in registry.names():
            raise UsageError(f"unknown cgee rule {asked!r}; choices: {', '.join([AUTO, *registry.names()])}")
        if asked == CALIBRATED and self._config.cgee_record is None:
            raise UsageError(
                "cgee rule 'calibrated' needs a record: give cgee_record=FILE, made by the 'calibrate' command"
            )
        return asked

    def _make(self, name: str) -> Gate | None:
        if name == OFF:
            return None
        if name != CALIBRATED:
            return Gate(registry.create(name))
        record = self._fitting
        rate = record.watched_rate
        alarm = BettingAlarm(rate, record.delta) if rate < 1 else None
        return Gate(registry.create(name, record=record), alarm, self._config.cgee_audit)

    @cached_property
    def _fitting(self) -> CalibrationRecord:
        if self._record is None:
            raise RuntimeError("a calibrated rule without a record was not refused")
        try:
            self._record.require(self._setting())
        except RecordError as error:
            raise UsageError(f"cgee_record {self._config.cgee_record!r}: {error}") from None
        return self._record


def setting_of(config: Config, spec: EngineSpec, codec: Codec, prompt: ChatPrompt, verifier: str) -> Setting:
    """The setting in which this orchestrator searches. verifier: the name of who scores nodes."""
    return Setting(_model(spec), config.dtype, template_key(codec, prompt), config.family, verifier + _way(config))


def _way(config: Config) -> str:
    """How self-evaluation differs from its defaults; another way of asking is another verifier."""
    if config.verifier != "self_evaluation":
        return ""
    parts: list[str] = [config.verify_prompt if config.verify_prompt != "continuation" else ""]
    parts.append("debias" if config.verify_debias else "")
    parts.append(f"{config.layer_exit}={config.exit_threshold}" if config.layer_exit != "none" else "")
    return "".join(f"+{part}" for part in parts if part)


def template_key(codec: Codec, prompt: ChatPrompt) -> str:
    """Digest of the prompt and the verifier's questions as the model's own template renders them."""
    messages = prompt.messages(Problem("?"))
    texts = [codec.render(messages)]
    if (tokens := begin(codec, messages)) != codec.encode(texts[0]):
        texts.append(f"begins with {tokens[0]}")
    texts += [codec.next_turn(question) for question in (STEP_QUESTION, ANSWER_QUESTION)]
    return blake2b("\0".join(texts).encode(), digest_size=12).hexdigest()


def with_known_dtype(config: Config) -> Config:
    """The configuration with "auto" replaced by what a model on this machine's device takes; a record names a dtype."""
    if config.dtype != "auto" or config.model == SIMULATED:
        return config
    from engine.loading import pick_device, pick_dtype

    dtype = str(pick_dtype("auto", pick_device(config.device))).removeprefix("torch.")
    return config.model_copy(update={"dtype": dtype})


def _model(spec: EngineSpec) -> str:
    """Fingerprint of the weights; a simulated engine is a model for each set of its options."""
    name = spec.fingerprint.partition(":")[0]
    return f"{name}:{dict(spec.options)}" if spec.factory is None and spec.model == SIMULATED else name


def _loaded(path: str) -> CalibrationRecord:
    try:
        return load(Path(path))
    except RecordError as error:
        raise UsageError(str(error)) from None


def _own_rule(rule: SkipRule) -> SkipRule:
    missing = [name for name in ("name", "scope", "needs", "decide", "foreign") if not hasattr(rule, name)]
    if isinstance(rule, type) or missing:
        raise UsageError(f"cgee takes the name of a rule or a rule object, got {rule!r}; names: {registry.names()}")
    return rule
