"""Name all that a job is started with, one text for each thing, so that a change can be told in words. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

Inputs = Mapping[str, str]
"""By name, such as `source logins.lateness`, `kafka.topic_prefix` or `declared.window`: the value as JSON."""

# Addresses that may hold a password; passwords themselves are in files, and never read for this.
_SECRET = {"database", "postgres", "redis", "influx"}
# The title is a part of the docstring.
_TOLD_ELSEWHERE = {"name", "path", "version", "code", "title"}


def inputs_of(
    prefix: str, values: BaseModel | Mapping[str, Any], *, only: set[str] | None = None, but: set[str] | None = None
) -> dict[str, str]:
    """Name the fields of `values` after `prefix`: `only` some, or all `but` some."""
    plain = values.model_dump(include=only) if isinstance(values, BaseModel) else dict(values)
    return {f"{prefix}.{key}": _text(key, value) for key, value in plain.items() if key not in (but or ())}


def remarks_of(values: Mapping[str, Any], inputs: Inputs) -> dict[str, str]:
    """Name the fields of what a file declares that are no part of `inputs`: a change of them restarts nothing."""
    read = {name.rpartition(".")[2] for name in inputs} | _TOLD_ELSEWHERE
    return {key: _text(key, value) for key, value in values.items() if key not in read}


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
        return {str(key): _sorted(one) for key, one in value.items()}
    return sorted(map(str, value)) if isinstance(value, frozenset | set) else value


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    fields = getattr(value, "__dict__", None)
    return {key: one for key, one in fields.items() if one is not None} if fields else str(value)
