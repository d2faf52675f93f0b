"""The one form of every mail of the product: a `Letter` says its content, and one template each makes text and HTML.

Everything passes `printable` and, in HTML, Jinja's escaping. Styles are written into the elements, since many mail
programs know no style sheets, without a library: letters are also composed in Airflow's environment.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tocsin.declare.model.sizes import entity_text, printable

_PACKAGE = "tocsin.alerts.notify.mail"
_RULE = re.compile(r"^\.([\w-]+) \{ (.*) \}$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a letter under a `title`; without one if that is empty. `note` is a line below it."""

    title: str = ""
    note: str = ""

    @property
    def kind(self) -> str:
        """Its name in the templates."""
        return type(self).__name__.lower()


@dataclass(frozen=True, kw_only=True)
class Paragraphs(Section):
    """Running text."""

    texts: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Picture(Section):
    """The picture at `address`, described in `words`; the text part leaves it out."""

    address: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Facts(Section):
    """Names with their values; a value with an address is a link."""

    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, kw_only=True)
class Table(Section):
    """Rows of as many cells as there are `columns`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Shares(Section):
    """Values of columns with their share now and their usual one, of 1; None where what is usual is not known."""

    rows: Sequence[tuple[str, str, float, float | None]]


@dataclass(frozen=True, kw_only=True)
class Item:
    """One of several things, such as an alert: `head`, the `figure` that matters, and lines."""

    head: str
    figure: str = ""
    tone: str = "notice"
    lines: Sequence[str] = ()
    link: str = ""


@dataclass(frozen=True, kw_only=True)
class Items(Section):
    """A list of things."""

    items: Sequence[Item]


@dataclass(frozen=True, kw_only=True)
class Code(Section):
    """What to paste into a shell, or a sample: each by itself."""

    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Output(Section):
    """Lines of a log or an error, as they are."""

    lines: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Buttons(Section):
    """Words and address of each; the first is the one to press. Those without an address are left out."""

    links: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Letter:
    """The content of one mail."""

    subject: str
    tone: Literal["urgent", "email", "notice", "good"]
    label: str
    about: str = ""
    headline: str
    figure: str = ""
    figure_words: str = ""
    lead: Sequence[str] = ()
    caution: str = ""
    sections: Sequence[Section] = ()
    foot: str = ""

    def text(self) -> str:
        """Write it as plain text, which says all of it."""
        return _environments()[0].get_template("letter.txt").render(letter=self)

    def html(self) -> str:
        """Write it as HTML, which says all of it."""
        return _environments()[1].get_template("letter.html").render(letter=self)


@cache
def _environments() -> tuple[Environment, Environment]:
    loader = PackageLoader(_PACKAGE)
    options: dict[str, Any] = {"undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    options |= {"finalize": _printable, "loader": loader}
    # Plain text has no markup that could be escaped.
    text = Environment(autoescape=False, keep_trailing_newline=True, **options)
    html = Environment(autoescape=True, **options)
    sheet = files(_PACKAGE).joinpath("templates/letter.css").read_text(encoding="utf-8")
    rules = dict(_RULE.findall(sheet.partition("@media")[0]))
    html.globals |= {"sheet": Markup(sheet), "css": lambda names: _styled(names, rules)}
    return text, html


def _styled(names: str, rules: dict[str, str]) -> Markup:
    return Markup('class="{}" style="{}"').format(names, " ".join(rules[name] for name in names.split()))


def _printable(value: object) -> object:
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


def plain(text: str, longest: int = 200) -> str:
    """Write `text` in one line of about `longest` characters at most; a cut text ends with its true length."""
    cut = printable(text[:longest])
    if len(text) <= longest and len(cut) <= 2 * longest:
        return cut
    return f"{cut[: 2 * longest]}… ({len(text):,} characters)"


def named(entity: dict[str, str], longest: int = 200) -> str:
    """Name who or what an alert is about, see `entity_text`; a long value hides no other one."""
    text = entity_text(entity)
    if len(text) > longest and len(entity) > 1:
        room = longest // len(entity)
        text = entity_text(
            {name: value if len(value) <= room else f"{value[:room]}…" for name, value in entity.items()}
        )
        longest *= 2
    return plain(text, longest)


def value(anything: Any) -> str:
    """Write a sample event or an added fact: text as it is, the rest as JSON."""
    text = anything if isinstance(anything, str) else json.dumps(anything, ensure_ascii=False, default=str)
    return plain(text, 300)


def times(start: datetime, end: datetime) -> str:
    """Write a window in UTC, with its date once where that is enough."""
    form = "%H:%M:%S" if not (start.microsecond or end.microsecond) else "%H:%M:%S.%f"
    last = f"{end:{form}}" if start.date() == end.date() else f"{end:%Y-%m-%d {form}}"
    return f"{start:%Y-%m-%d {form}} to {last} UTC ({duration(end - start)})"


def duration(length: timedelta) -> str:
    """Write a length of time in its largest whole unit: 10 s, 5 min, 1 h, 2 d."""
    seconds = length.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
