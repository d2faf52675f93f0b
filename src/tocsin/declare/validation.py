"""Check declarations: the types that several files share, and what is wrong as faults with their place."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError

from tocsin.declare.model.durations import parse_duration
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.names import valid_name
from tocsin.declare.model.source import ENVELOPE, ColumnType
from tocsin.declare.receivers import check_recipient

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
LEAST_MEMORY = 512_000_000
"""Heap of an executor in bytes, below which Spark does not start."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([MG])B")
_CHOICE = re.compile(r"(list|literal|function-[a-z]+)\[")
"""How pydantic names the forms that one value may have, where it does not name a key."""
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError(f"must be a non-empty text, not {value!r}")
    return value


def _duration(value: object) -> object:
    return value if isinstance(value, timedelta) else parse_duration(str(value))


def parse_size(value: object) -> int:
    """Read a size such as "900 MB" as bytes; ValueError if it is no such text."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    size = round(float(match[1]) * (1e9 if match[2] == "G" else 1e6)) if match else 0
    if size <= 0:
        raise ValueError(f"must be a size such as '900 MB' or '1.5 GB', not {value!r}")
    return size


def _column(name: str) -> str:
    if not _COLUMN.fullmatch(name):
        raise ValueError("is not a column name: letters, digits and _ only, and no digit first")
    if name.lower() in ENVELOPE:
        raise ValueError("is reserved for the event envelope; choose another")
    return name


def as_list(value: Any) -> Any:
    """Wrap a single value, so that a list of one need not be written as a list."""
    return value if isinstance(value, list | tuple) else [value]


Text = Annotated[str, AfterValidator(_text)]
Address = Annotated[str, AfterValidator(check_recipient)]
Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]
ColumnName = Annotated[str, AfterValidator(_column)]
Columns = dict[ColumnName, ColumnType]


def faults_of(
    error: ValidationError,
    where: str | Path,
    model: type[BaseModel],
    what: str,
    line: Callable[[str], int | None] = lambda _: None,
) -> list[Fault]:
    """Turn the errors of pydantic into faults, each with its key and the nearest valid name.

    `where` is the file at fault; `what` a key of it is called, such as "a setting"; `line` finds the line of a key.
    """
    found: dict[object, Fault] = {}
    for number, detail in enumerate(error.errors()):
        fault = _fault(dict(detail), str(where), model, what, line)
        is_choice = any(isinstance(part, str) and _CHOICE.match(part) for part in detail["loc"])
        found.setdefault(fault.key if is_choice else number, fault)  # of several forms, none of which fits, the first
    return list(found.values())


def _fault(
    detail: Mapping[str, Any], where: str, model: type[BaseModel], what: str, line: Callable[[str], int | None]
) -> Fault:
    loc = [part for part in detail["loc"] if part != "[key]" and not (isinstance(part, str) and _CHOICE.match(part))]
    value, near = detail["input"], None
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
    for block in blocks:
        annotation = model.model_fields[block].annotation if block in model.model_fields else None
        inner = next(iter(get_args(annotation)), annotation)  # of a list, what it holds
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model
    return [field.alias or name for name, field in model.model_fields.items()]


class TomlReader:
    """Reads one file into `table`; `faults` are those found so far."""

    def __init__(self, path: Path) -> None:
        """Read `path`; ConfigError, where a retry does not help, if it cannot be read, or is not TOML."""
        try:
            text = path.read_text(encoding="utf-8")
            self.table: dict[str, Any] = tomllib.loads(text)
        except OSError as error:
            raise ConfigError.one(path, f"cannot be read: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError.one(path, f"is not TOML: {error}") from error
        self.path = path
        self.faults: list[Fault] = []
        self._lines = text.splitlines()
        if not _NAME.fullmatch(path.stem):
            what = "the file name becomes part of topic names: small letters, digits, - and _ only"
            self.fault(None, f"{what}; rename it to {valid_name(path.stem)}.toml")

    def fault(self, key: str | None, what: str, *, near: str | None = None) -> None:
        """Note that something is wrong with `key`."""
        self.faults.append(Fault(str(self.path), what, key=key, line=(key and self.line(key)) or None, nearest=near))

    def check_columns(self, schema: Iterable[str], optional: Iterable[str], enrich: Iterable[str] = ()) -> None:
        """Note columns that are declared twice."""
        seen: dict[str, str] = {}
        blocks = {"schema": schema, "optional": optional, "enrich": enrich}
        for key in (f"{block}.{column}" for block, columns in blocks.items() for column in columns):
            name = key.partition(".")[2].lower()
            if name in seen:
                self.fault(key, f"is already declared, as {seen[name]}; column names ignore case")
            seen.setdefault(name, key)

    def raise_faults(self) -> None:
        """Raise ConfigError with every fault found, in the order of their lines."""
        if self.faults:
            raise ConfigError(sorted(self.faults, key=lambda fault: fault.line or 0))

    def line(self, key: str) -> int | None:
        """1-based line of `key` (`schema.user_id` for a column); None when it is not written."""
        table, _, name = key.rpartition(".")
        inside = ""
        for number, line in enumerate(self._lines, start=1):
            header = re.match(r"\s*\[\s*([A-Za-z0-9_-]+)\s*\]", line)
            inside = header.group(1) if header else inside
            written = inside == table and re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*=", line)
            if written or (header and key == inside):
                return number
        return self.line(table) if "." in table else None
