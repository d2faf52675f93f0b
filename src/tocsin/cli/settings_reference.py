"""docs/run/settings.md, from the settings: `python -m tocsin.cli.settings_reference > docs/run/settings.md`.

The meaning of a key stands in the docstring of its block. A test compares the page with the code.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tocsin.declare.model.durations import exact_text
from tocsin.declare.receivers import RECEIVERS
from tocsin.declare.settings import Settings

_INTRODUCTION = """# Settings

Written by `python -m tocsin.cli.settings_reference`; change the code, not this page.

Later wins: the defaults below, `tocsin.toml` in the project folder, what a running `tocsin dev up` has written into its
state folder, variables of the environment. The key `port` of the table `[smtp]` is the variable `TOCSIN_SMTP__PORT`;
lists and tables are written there as JSON. Paths that are not absolute begin in the project folder, which is the
current one or that of TOCSIN_PROJECT. Passwords are given as files. `tocsin check` names each key that is wrong.

```toml
# tocsin.toml
instance = "shop"

[smtp]
host = "mail.example.com"
```
"""
ATTRIBUTE = re.compile(r"^    ([a-z_0-9]+(?:, [a-z_0-9]+)*): (.*(?:\n        .*)*)", re.MULTILINE)


def settings_page() -> str:
    """Write the whole page."""
    parts = [_INTRODUCTION]
    for name, block in _blocks(Settings, ""):
        if "." in name:
            top = f"## `[{name.partition('.')[0]}]`\n"
            parts[-1:] = [] if top in parts else ["", top]
            parts += [f"- `[{name}]`: {' '.join(_introduction(block).split())}"]
        else:
            parts += [f"## `[{name}]`\n" if name else "## Of the installation\n"]
            parts += [_introduction(block), ""] if name else []
        indent = "  " if "." in name else ""
        parts += [f"{indent}- {', '.join(keys)} {said}" for said, keys in _keys(block).items()]
        parts += [""] if parts[-1] else []
    return "\n".join(parts)


def _keys(block: type[BaseModel]) -> dict[str, list[str]]:
    """Group the keys of `block` by their facts and meaning."""
    found: dict[str, list[str]] = {}
    meanings = meanings_of(block)
    for key, field in block.model_fields.items():
        if _block_in(field) is None:
            facts = ", ".join(filter(None, (_type(field), _default(field))))
            found.setdefault(f"({facts}): {' '.join(meanings.get(key, '').split())}", []).append(f"`{key}`")
    return found


def meanings_of(block: type[BaseModel]) -> dict[str, str]:
    """Read the meaning of each key of `block`, and of what it inherits, out of the docstrings."""
    found: dict[str, str] = {}
    for base in reversed(block.__mro__):
        document = inspect.cleandoc(base.__doc__ or "")
        for names, meaning in ATTRIBUTE.findall(document.partition("Attributes:")[2]):
            found |= dict.fromkeys(names.split(", "), meaning)
    return found


def blocks() -> dict[str, type[BaseModel]]:
    """All tables of the settings by their names; that of the keys outside of a table is called ""."""
    return dict(_blocks(Settings, ""))


def _blocks(block: type[BaseModel], name: str) -> Iterator[tuple[str, type[BaseModel]]]:
    yield name, block
    for key, field in block.model_fields.items():
        inner = _block_in(field)
        if inner is not None:
            is_named = "dict" in str(field.annotation)
            yield from _blocks(inner, ".".join(filter(None, (name, key, "NAME" if is_named else ""))))
    if block is Settings:
        targets = ((kind, receiver.target) for kind, receiver in RECEIVERS.items() if receiver.target is not None)
        yield from ((f"receivers.{kind}.NAME", target) for kind, target in targets)


def _block_in(field: FieldInfo) -> type[BaseModel] | None:
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _introduction(block: type[BaseModel]) -> str:
    return inspect.cleandoc(block.__doc__ or "").partition("Attributes:")[0].strip()


def _type(field: FieldInfo) -> str:
    text = re.sub(r"Annotated\[(\w+)[^\]]*\]", r"\1", str(field.annotation))
    kinds = (("Literal", ""), ("timedelta", "duration"), ("Path", "path"), ("bool", "true or false"), ("dict", "table"))
    if "Literal" in text and "dict" not in text:
        return " or ".join(f'`"{value}"`' for value in get_args(field.annotation))
    for word, shown in (*kinds[1:], ("tuple", "list"), ("int", "whole number"), ("float", "number")):
        if word in text:
            return shown
    return "text"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if value is None or value in ((), {}, "") else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, timedelta):
        return json.dumps(exact_text(value))
    if isinstance(value, Path | Enum):
        return json.dumps(str(value))
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


if __name__ == "__main__":
    sys.stdout.write(settings_page())
