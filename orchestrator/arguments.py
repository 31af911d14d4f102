"""What commands share: exit codes, and reading arguments - `key=value` pairs, numbers, what was given at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from orchestrator.config import TEXT_KEYS, UsageError, read_yaml
from search.strategies import registry
from search.strategies.base import Strategy

SOME_FAILED, USAGE, NOTHING_RAN, PAUSED, INTERRUPTED = 1, 2, 3, 75, 130


def config_values(file: Path | None, pairs_given: Sequence[str] | None, named: dict[str, Any]) -> dict[str, Any]:
    """Config keys from a YAML file, `--set` pairs and options of their own, the later ones winning."""
    values = {**(read_yaml(file) if file else {}), **pairs(pairs_given or [], "--set"), **given(named)}
    if isinstance(values.get("engines"), str) and values["engines"] != "auto":
        values["engines"] = integer(values["engines"], "--engines")
    return values


def given(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def pairs(texts: Sequence[str], flag: str) -> dict[str, Any]:
    """`key=value` texts; values are read as YAML scalars or lists."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{flag} takes key=value, got {text!r}")
        name = key.replace("-", "_")
        if flag == "--set" and name in TEXT_KEYS:
            found[name] = value
            continue
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise UsageError(f"{flag} {key}: {value!r} is not a YAML value") from None
    return found


def strategy_of(name: str, options: Mapping[str, Any]) -> Strategy:
    """A strategy with its `--option` pairs, which no argument of a call takes away. UsageError for unknown ones."""
    try:
        return registry.create(name, **options)
    except (ValueError, TypeError) as error:  # TypeError: an option named as the registry's own argument
        raise UsageError(str(error)) from None


def integer(text: str, flag: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{flag} takes a number or 'auto', got {text!r}") from None
