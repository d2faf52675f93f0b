"""Name all that a job is started with, one text for each thing, and what of it changed. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Set
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from tocsin.declare.sinks import SINKS

Inputs = Mapping[str, str]
"""By name, such as `source logins.lateness`, `kafka.topic_prefix` or `declared.window`: the value as JSON."""

# Addresses that may hold a password; passwords themselves are in files, and never read for this.
_SECRET = {"database", *SINKS}
_LOOPBACK = "127.0.0.1:"
_IMPLIED = {"version"}  # what changes with something else that is named


def inputs_of(
    prefix: str, values: BaseModel | Mapping[str, Any], *, only: set[str] | None = None, but: Set[str] | None = None
) -> dict[str, str]:
    """Name the fields of `values` after `prefix`: `only` some, or all `but` some."""
    plain = values.model_dump(include=only) if isinstance(values, BaseModel) else dict(values)
    return {f"{prefix}.{key}": _text(key, value) for key, value in plain.items() if key not in (but or ())}


def changed_inputs(before: Inputs, after: Inputs) -> list[str]:
    """List the names of what changed, without ports of a stack on this machine, which differ each time."""
    names = [name for name in {**after, **before} if before.get(name) != after.get(name) and name not in _IMPLIED]
    return [name for name in names if not _is_own_port(before.get(name), after.get(name))]


def _is_own_port(before: str | None, after: str | None) -> bool:
    return all(text is not None and text.strip('"').startswith(_LOOPBACK) for text in (before, after))


def digest(text: str) -> str:
    """Write a text that is too long to keep, or secret, as 12 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def spec_of(inputs: Inputs) -> str:
    """Hash `inputs`: another hash means that a job is to be replaced."""
    return digest(json.dumps(inputs, sort_keys=True))


def _text(key: str, value: object) -> str:
    """Write `value` as JSON that is the same in every process: sets in order."""
    text = json.dumps(_sorted(value), sort_keys=True, default=_plain)
    return json.dumps(digest(text)) if key in _SECRET and value is not None else text


def _sorted(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _sorted(item) for key, item in value.items()}
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else value


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    fields = getattr(value, "__dict__", None)
    return {key: item for key, item in fields.items() if item is not None} if fields else str(value)
