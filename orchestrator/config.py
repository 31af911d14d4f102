"""Configuration from keyword arguments, YAML and the command line: one frozen model, unknown keys refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from actors.policies import registry
from actors.reward import RewardSpec
from actors.spec import EngineSpec
from engine.asks.options import Asks
from search.prompts import INSTRUCTION, SYSTEM
from search.types import Boundary, ExitRule, Sampling


class UsageError(ValueError):
    """The user asked for something that cannot be done; the message names the rule, the value and the choices."""


class Config(BaseModel):
    """Everything an Orchestrator needs to know before it starts.

    engines: engine actors, "auto" is one per GPU or up to two CPU engines. gpus_per_engine: GPUs (or a share) each;
    None takes one where the cluster has GPUs. threads: CPU threads per engine. wait_for_resources_s: how long an
    autoscaling cluster may take to bring what is asked for. elastic: whether engines start on what is free or comes
    while searches run, up to max_engines, None where there is room.
    step_*: where a step ends (see `search.types.Boundary`).
    kv_budget_bytes: most bytes of KV on an engine's device, None is unbounded, 0 keeps nothing between calls; eviction:
    what goes first when they are short (`engine.eviction`); host_budget_bytes: evicted KV kept in host memory, None is
    a quarter of what is free there divided by the machine's GPUs, and nothing for CPU engines. attention: how it is
    computed (`engine.attention`).
    rows_per_engine: sample rows that fill an engine, None takes 2 on CPUs and 16 on GPUs. placement: policy that
    chooses an engine for each branch (`actors.policies`). kv_transfer: how engines may send KV to each other where that
    is faster than prefill: by the object store ("auto"), from GPU to GPU by Ray's direct transport ("nixl"), or not.
    concurrency: problems searched at once. capacity: orders one strategy may have in flight. verifier: who scores
    nodes, for strategies
    that ask; verifier_command: of "command" (`search.verifiers.command`); verifier_timeout_s: of "command" and reward
    models, None takes 10 and 120. reward_*, step_separator: the model of "prm" and "orm" (`actors.reward.RewardSpec`);
    verifier_*: its device, dtype, KV bytes, GPUs (or a share; 0 is a CPU), and how many of it there are.
    verifier_aggregate: how step scores of a "prm" or "command" become one. value_scale: words, or digits, or words
    where they are single tokens ("auto"), that "value" reads. verify_prompt, verify_debias: how self-evaluation asks
    (`search.verifiers.self_evaluation`). cgee: rule that may leave verifications out (`search.cgee`); auto is
    "calibrated" with a record, else off. cgee_record: file of a calibration.
    cgee_audit: share of decisions whose skips are verified all the same, with a record. family: names the kind of
    problems, for calibration records. layer_exit, exit_threshold: CGEE level 2, ends the reading of a question at the
    layer where its answer stands (`engine.base.LayerExit`). asks: tiers of KV reuse that approximate, and their bounds
    (`engine.asks.options.Asks`). merged: whether siblings that say the same become one node, None where the strategy
    allows it. layout: whether prompts put what varies last, so that branches share their prefix.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str = "embedded"
    engines: Literal["auto"] | int = "auto"
    runtime: Literal["ray", "inline"] = "ray"
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    threads: int = Field(1, ge=1)
    gpus_per_engine: float | None = Field(None, ge=0)
    wait_for_resources_s: float = Field(0.0, ge=0)
    elastic: bool = False
    max_engines: int | None = Field(None, ge=1)
    kv_budget_bytes: int | None = Field(None, ge=0)
    host_budget_bytes: int | None = Field(None, ge=0)
    eviction: Literal["lru", "omega", "value"] = "lru"
    attention: Literal["auto", "reference", "native", "cpu", "cuda"] = "auto"
    max_rows: int = Field(64, ge=1)
    rows_per_engine: int | None = Field(None, ge=1)
    placement: str = registry.DEFAULT
    kv_transfer: Literal["auto", "off", "nixl"] = "auto"
    simulated: dict[str, Any] = Field(default_factory=dict)
    temperature: float = Field(0.8, ge=0)
    top_p: float = Field(0.95, gt=0, le=1)
    max_step_tokens: int = Field(64, ge=1)
    step_delimiter: str | None = "\n\n"
    step_regex: str | None = None
    step_tokens: int | None = Field(None, ge=1)
    system: str = SYSTEM
    instruction: str = INSTRUCTION
    kind: Literal["auto", "number", "choice", "math", "text", "exact"] = "auto"
    verifier: Literal["self_evaluation", "value", "vote", "prm", "orm", "confidence", "checker", "command", "none"] = (
        "self_evaluation"
    )
    verifier_command: str = ""
    verifier_timeout_s: float | None = Field(None, gt=0)
    verifier_aggregate: Literal["last", "min", "prod", "mean", "sum_logprob"] = "last"
    reward_model: str = ""
    reward_head: Literal["auto", "token", "sequence", "labels"] = "auto"
    reward_labels: tuple[str, str] | None = None
    step_separator: str = "\n"
    verifier_workers: int = Field(1, ge=1)
    verifier_gpus: float = Field(0.0, ge=0)
    verifier_device: str = "auto"
    verifier_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    verifier_kv_budget_bytes: int | None = Field(1 << 30, ge=0)
    value_scale: Literal["auto", "words", "digits"] = "auto"
    cgee: str = "auto"
    cgee_record: str | None = None
    cgee_audit: float = Field(0.05, ge=0, le=1)
    family: str = "general"
    verify_prompt: Literal["continuation", "separate"] = "continuation"
    verify_debias: bool = False
    layer_exit: Literal["none", "paper", "margin"] = "none"
    exit_threshold: float | None = Field(None, ge=0)
    asks: dict[str, Any] = Field(default_factory=dict)
    merged: bool | None = None
    layout: bool = True
    concurrency: int = Field(8, ge=1)
    capacity: int = Field(16, ge=1)
    attempts: int = Field(3, ge=1)
    call_timeout_s: float = Field(600.0, gt=0)

    @field_validator("cgee", mode="before")
    @classmethod
    def _off_in_yaml(cls, value: object) -> object:
        """YAML reads a bare `off` as false."""
        return "off" if value is False else value

    @field_validator("placement")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        return registry.check(value)

    @classmethod
    def create(cls, **values: Any) -> Config:
        """A validated configuration; UsageError names the first key at fault and the nearest known one."""
        for key in values:
            if key not in cls.model_fields:
                raise UsageError(_unknown_key(key, sorted(cls.model_fields)))
        try:
            config = cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][:1])
            raise UsageError(f"config {where}={first['input']!r} is not valid: {first['msg']}") from None
        if config.step_regex is not None:
            try:
                re.compile(config.step_regex)
            except re.error as error:
                raise UsageError(f"config step_regex={config.step_regex!r} is no regular expression: {error}") from None
        _ = _asks(config.asks)
        if isinstance(values.get("engines"), bool):
            raise UsageError("config engines takes a whole number or 'auto', got a truth value")
        if isinstance(config.engines, int) and config.engines < 1:
            raise UsageError(f"config engines={config.engines} is not valid: at least 1, or 'auto'")
        if config.exit_threshold is not None and config.layer_exit == "none":
            raise UsageError(
                f"config exit_threshold={config.exit_threshold} goes with a layer_exit; choices: paper, margin"
            )
        _check_elastic(config)
        _check_reward(config)
        return config

    @property
    def reward_models(self) -> int:
        """Reward models that are started beside the engines."""
        return self.verifier_workers if self.verifier in REWARDS else 0

    @property
    def verifier_shares(self) -> list[float]:
        """GPUs, or the share of one, of each reward model that takes any."""
        return [self.verifier_gpus] * self.reward_models if self.verifier_gpus else []

    @property
    def reward_spec(self) -> RewardSpec:
        """The reward model of "prm" or "orm"."""
        on_cpu = self.verifier_device == "auto" and not self.verifier_gpus
        return RewardSpec(
            model=self.reward_model,
            reading="steps" if self.verifier == "prm" else "whole",
            head=self.reward_head,
            labels=self.reward_labels,
            separator=self.step_separator,
            device="cpu" if on_cpu else self.verifier_device,
            dtype=self.verifier_dtype,
            threads=self.threads,
            kv_budget_bytes=self.verifier_kv_budget_bytes,
        )

    @property
    def exit_rule(self) -> ExitRule | None:
        return None if self.layer_exit == "none" else ExitRule(self.layer_exit, self.exit_threshold)

    @property
    def sampling(self) -> Sampling:
        boundary = Boundary(self.step_delimiter or None, self.step_regex, self.step_tokens)
        return Sampling(self.temperature, self.top_p, self.max_step_tokens, boundary)

    @property
    def spec(self) -> EngineSpec:
        return EngineSpec(
            model=self.model,
            device=self.device,
            dtype=self.dtype,
            threads=self.threads,
            kv_budget_bytes=self.kv_budget_bytes,
            host_budget_bytes=self.host_budget_bytes,
            eviction=self.eviction,
            attention=self.attention,
            max_rows=self.max_rows,
            options=tuple(sorted(self.simulated.items())),
            asks=_asks(self.asks),
        )


REWARDS = frozenset({"prm", "orm"})
"""Verifiers that are reward models."""

TEXT_KEYS = frozenset(name for name, field in Config.model_fields.items() if field.annotation is str) | {"cgee_record"}
"""Keys whose values are plain texts, whatever they look like."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Keys of a YAML file, to be given to `Config.create`."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"config file {str(path)!r} cannot be read: {str(error).splitlines()[0]}") from None
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise UsageError(f"config file {str(path)!r} must hold keys and values, not a {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


def _check_elastic(config: Config) -> None:
    """UsageError for engines that are to join where none can, or more from the start than there may ever be."""
    if config.elastic and config.runtime == "inline":
        raise UsageError("config elastic=True goes with runtime='ray': engines join on Ray's nodes")
    if config.max_engines is not None and not config.elastic:
        raise UsageError(f"config max_engines={config.max_engines} goes with elastic=True; without it engines is all")
    if config.max_engines is not None and isinstance(config.engines, int) and config.engines > config.max_engines:
        raise UsageError(f"config engines={config.engines} is more than max_engines={config.max_engines}")


def _check_reward(config: Config) -> None:
    """UsageError for a reward model without a checkpoint, a checkpoint without a use, and GPUs that do not add up."""
    if config.verifier in REWARDS and not config.reward_model:
        raise UsageError(f"config verifier={config.verifier!r} needs reward_model, a hub id or a local folder")
    if config.reward_model and config.verifier not in REWARDS:
        raise UsageError(
            f"config reward_model={config.reward_model!r} goes with verifier='prm' or 'orm', got {config.verifier!r}"
        )
    gpus = config.verifier_gpus
    if gpus > 1 and gpus != int(gpus):
        raise UsageError(f"config verifier_gpus={gpus} is not valid: a share below 1, or whole GPUs")
    if config.verifier_device.startswith("cuda") and not gpus:
        raise UsageError(
            f"config verifier_device={config.verifier_device!r} needs verifier_gpus, such as 1, or 0.5 to share one"
        )


def _asks(values: Mapping[str, Any]) -> Asks:
    known = sorted(option.name for option in fields(Asks))
    for key in values:
        if key not in known:
            raise UsageError(f"config asks: {_unknown_key(key, known)}")
    try:
        return Asks(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"config asks={dict(values)!r} is not valid: {error}") from None


def _unknown_key(key: str, known: list[str]) -> str:
    match = get_close_matches(key, known, 1)
    hint = f", did you mean {match[0]!r}?" if match else ""
    return f"unknown config key {key!r}{hint}; choices: {', '.join(known)}"
