"""Check declarations with pydantic: the types that several files share, and its errors as faults with their place."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, get_args

import email_validator
from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError

from tocsin.model.durations import parse_duration
from tocsin.model.errors import Fault, nearest

email_validator.SPECIAL_USE_DOMAIN_NAMES.clear()  # mail within a company goes to `localhost` and `.local` too


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError(f"must be a non-empty text, not {value!r}")
    return value


def _address(value: str) -> str:
    try:
        email_validator.validate_email(
            value, check_deliverability=False, globally_deliverable=False, allow_domain_literal=True
        )
    except email_validator.EmailNotValidError as error:
        raise ValueError(f"must be one e-mail address, not {value!r}") from error
    return value


def _duration(value: object) -> object:
    return value if isinstance(value, timedelta) else parse_duration(str(value))


def as_list(value: object) -> object:
    """Wrap a single value, so that a list of one need not be written as a list."""
    return value if isinstance(value, list | tuple) else [value]


Text = Annotated[str, AfterValidator(_text)]
Address = Annotated[str, AfterValidator(_address)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]


def faults_of(
    error: ValidationError,
    where: str | Path,
    model: type[BaseModel],
    what: str,
    line: Callable[[str], int | None] = lambda _: None,
) -> list[Fault]:
    """Turn the errors of pydantic into faults, each with its key and the nearest valid name.

    Args:
        error: from the validation of `model`.
        where: the file at fault.
        model: the contract of the file.
        what: a key of it is called, such as "a setting".
        line: finds the line of a key.
    """
    return [_fault(dict(detail), str(where), model, what, line) for detail in error.errors()]


def _fault(
    detail: Mapping[str, Any], where: str, model: type[BaseModel], what: str, line: Callable[[str], int | None]
) -> Fault:
    loc, value, near = [part for part in detail["loc"] if part != "[key]"], detail["input"], None
    path = [part for part in loc if isinstance(part, str)]
    if detail["type"] != "model_type":  # of a list of texts the list is at fault, of a list of blocks the block
        while loc and isinstance(loc[-1], int):
            loc.pop()
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".") or None
    match detail["type"]:
        case "extra_forbidden":
            message, near = f"is not {what}", nearest(path[-1], _keys(model, path[:-1]))
        case "missing":
            message = "is missing"
        case "value_error":
            message, near = str(detail["ctx"]["error"]), getattr(detail["ctx"]["error"], "near", None)
        case "string_type":
            message = f"must be a non-empty text, not {value!r}"
        case "dict_type" | "model_type":
            message = f"must be keys with values, not {value!r}"
        case "too_short":
            message = "must not be empty"
        case kind:
            message = re.sub("^.* should ", "must ", detail["msg"]) + f", not {value!r}"
            if kind in ("enum", "literal_error"):
                near = nearest(str(value), re.findall("'([^']*)'", detail["ctx"]["expected"]))
    return Fault(where, message, key=key, line=line(key) if key else None, nearest=near)


def _keys(model: type[BaseModel], blocks: list[str]) -> list[str]:
    """Name the keys of the block of `model` that lies at `blocks`."""
    for block in blocks:
        annotation = model.model_fields[block].annotation if block in model.model_fields else None
        inner = next(iter(get_args(annotation)), annotation)  # of a list, what it holds
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model
    return [field.alias or name for name, field in model.model_fields.items()]
