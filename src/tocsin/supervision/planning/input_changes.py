"""Say in words how what a job is to be started with differs from what it was started with. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tocsin.project.code.code_changes import code_changes
from tocsin.supervision.planning.job_inputs import Inputs

_LOOPBACK = "127.0.0.1:"
_LONGEST = 80
_IMPLIED = {"version"}
"""What changes with something else that is told."""

_WORDS = {
    "dedup": "dedup key", "dedup_period": "dedup period", "false_positives": "false positives",
    "page_within": "time within which it pages", "notify": "whether it notifies",
    "doc": "docstring", "runbook": "runbook", "owner": "owner", "stage": "stage", "memory": "memory limit",
}  # fmt: skip


def changed_inputs(before: Inputs, after: Inputs) -> list[str]:
    """List the names of what changed, without ports of a stack on this machine, which differ each time."""
    names = [name for name in {**after, **before} if before.get(name) != after.get(name) and name not in _IMPLIED]
    return [name for name in names if not _is_own_port(before.get(name), after.get(name))]


def in_words(names: list[str], before: Inputs, after: Inputs) -> list[str]:
    """Say how each of `names` changed."""
    return [sentence for name in names for sentence in _sentences(name, before.get(name), after.get(name))]


def remarks(before: Inputs, after: Inputs) -> list[str]:
    """Name what changed besides, in a few words each; none of it restarts anything."""
    return [_WORDS.get(name, name) for name in after if name in before and before[name] != after[name]]


def _is_own_port(before: str | None, after: str | None) -> bool:
    """Return whether both are addresses of an embedded stack."""
    return all(text is not None and text.strip('"').startswith(_LOOPBACK) for text in (before, after))


def _sentences(name: str, before: str | None, after: str | None) -> Iterator[str]:
    if name == "code":
        yield from code_changes(before or "", after or "")
        return
    if name == "platform":
        yield "the code of Tocsin changed"
        return
    if name == "credentials":
        yield "the passwords were written anew"
        return
    old, new = (None if text is None else json.loads(text) for text in (before, after))
    owner, _, key = name.rpartition(".")
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _entries(owner, key, old, new)
    else:
        yield f"{_subject(owner, key)} {_turn(old, new)}"


def _entries(owner: str, key: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Tell of each entry of a table, such as a column or a level."""
    word = {"columns": "column", "levels": "limit", "enrich": "lookup of"}.get(key, key)
    of = "" if owner == "declared" else f" of {owner}"
    for name in (one for one in {**new, **old} if old.get(one) != new.get(one)):
        yield f"the {word} {name}{of} {_turn(old.get(name), new.get(name))}"


def _subject(owner: str, key: str) -> str:
    if owner in ("declared", "computed"):
        return f"the {key}"
    return f"the {key} of {owner}" if " " in owner else f"the setting {owner}.{key}"


def _turn(old: object, new: object) -> str:
    if old is None or new is None:
        return f"was added: {_shown(new)}" if old is None else f"is gone; it was {_shown(old)}"
    return f"changed from {_shown(old)} to {_shown(new)}"


def _shown(value: object) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...") or "nothing"
