"""What every page needs: the installation, its alerts DB, templates, and tokens against forged forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from fastapi.responses import HTMLResponse
from itsdangerous import BadSignature, URLSafeTimedSerializer
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from sqlalchemy import Connection, func, select
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import FormData

from tocsin.alerts.actions import Silence, list_silences
from tocsin.alerts.links import Links
from tocsin.alerts.notify.mail.letter import duration, named, plain, times, value
from tocsin.alerts.store.database import Database
from tocsin.alerts.store.schema import alerts, silences
from tocsin.declare.model.detector_guide import link_of
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.names import dag_of, detector_job
from tocsin.declare.model.sizes import number, printable, score_text
from tocsin.declare.settings import Settings
from tocsin.platform.background_value import BackgroundValue
from tocsin.platform.state_file import read_or_make_secret
from tocsin.web.access import Access, User
from tocsin.web.page_data import Installation

_FORM_SECONDS = 12 * 3600
_MOST_FIELDS = 1000
_VERSION_SECONDS = 1.0
_FORMER = "this form is too old, or not from here; go back, load the page anew and send it again"


class Site:
    """One installation, as its pages show it."""

    def __init__(self, settings: Settings, access: Access) -> None:
        self.settings, self.access, self.links = settings, access, Links(settings)
        self.installation = Installation(settings)
        self.installation.prepare()
        self.has_views = False
        # One read serves everybody who looks: while the DB hangs, a read for each would take all threads.
        self.version = BackgroundValue(self._read_version, _VERSION_SECONDS)
        self.mutes_all = BackgroundValue(self._read_mutes_all, _VERSION_SECONDS)  # for pages that ask again and again

    @cached_property
    def database(self) -> Database:
        """The alerts DB; ConfigError if its address is wrong."""
        return Database(self.settings.alerts_database)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Begin to read the alerts DB; TransientError if it is away, or not there yet."""
        self._check_database()
        with self.database.read() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Begin to write in it; errors as of `read`."""
        self._check_database()
        with self.database.write() as connection:
            yield connection

    def _check_database(self) -> None:
        if not self.database.is_ready():  # to write there would make an empty file
            raise TransientError("There is no alerts DB yet; the indexer makes it when it starts")

    def _read_version(self) -> str:
        with self.read() as connection:
            return version_of(connection)

    def page(self, request: Request, template: str, status: int = 200, /, **facts: Any) -> HTMLResponse:
        """Fill a template."""
        user: User | None = request.scope.get("tocsin.user")
        facts |= {"root": request.scope.get("root_path", ""), "path": request.url.path, "user": user, "site": self}
        facts |= {"now": datetime.now(UTC), "csrf": self._forms.dumps(user.name if user else "")}
        if "mutes_all" not in facts:
            facts["mutes_all"] = []
            with suppress(TocsinError):  # the page says itself that the DB is away, if it needs it
                facts["mutes_all"] = self._read_mutes_all() if user else []
        return HTMLResponse(_templates().get_template(template).render(facts), status)

    def message(
        self, request: Request, text: str, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> HTMLResponse:
        """Fill a page that says one thing; with `Retry-After` it is loaded again. It does not read the alerts DB.

        Errors are handled on the event loop, often because that DB is away: reading it again would block every page.
        """
        facts: dict[str, Any] = {"text": text, "retry": (headers or {}).get("Retry-After"), "mutes_all": []}
        page = self.page(request, "message.html", status, **facts)
        page.headers.update(headers or {})
        return page

    def check_form(self, user: User | None, token: str) -> None:
        """Refuse a form that another site has made, or another user got, by an HTTPException."""
        try:
            name = self._forms.loads(token, max_age=_FORM_SECONDS)
        except BadSignature:
            name = None
        if name != (user.name if user else ""):
            raise HTTPException(403, _FORMER)

    @cached_property
    def _forms(self) -> URLSafeTimedSerializer:
        return URLSafeTimedSerializer(read_or_make_secret(self.settings.state / "web.secret"), salt="tocsin.form")

    def _read_mutes_all(self) -> list[Silence]:
        with self.read() as connection:
            found = list_silences(connection, datetime.now(UTC))
        return [silence for silence in found if silence.matcher.takes_all]


ROW_ID = "[0-9]{1,18}"
"""The numbers of rows that pages take, as a pattern: SQLite fails on longer ones, which no row has."""


class _RowId(Convertor[int]):
    regex = ROW_ID

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("row", _RowId())


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("tocsin.web"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, finalize=lambda text: printable(text) if type(text) is str else text,
    )  # fmt: skip
    made.filters |= {"named": named, "plain": plain, "value": value, "number": number}
    made.filters |= {"moment": _moment, "until": _until, "ago": _ago, "linked": _linked}
    made.filters |= {"span": span, "brief": _brief, "megabytes": lambda size: f"{size / 1e6:,.0f} MB"}
    made.globals |= {
        "score_text": score_text,
        "times": times,
        "job_dag": lambda detector: dag_of(detector_job(detector)),
    }
    return made


def _site(request: Request) -> Site:
    site: Site = request.app.state.site
    return site


Here = Annotated[Site, Depends(_site)]
"""The site of a request, as an argument of a route."""


async def _posted(request: Request) -> FormData:
    form = await request.form(max_files=0, max_fields=_MOST_FIELDS)
    _site(request).check_form(request.scope.get("tocsin.user"), str(form.get("csrf", "")))
    return form


Form = Annotated[FormData, Depends(_posted)]
"""The form of a request whose token was checked."""


def field(form: FormData, name: str) -> str:
    """Return what a field of a form holds, without spaces around it; empty if it is not there."""
    return str(form.get(name, "")).strip()


def _moment(time: datetime | float) -> str:
    return f"{_time(time).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _time(time: datetime | float) -> datetime:
    return time if isinstance(time, datetime) else datetime.fromtimestamp(time, UTC)


def _ago(time: datetime | float, now: datetime) -> str:
    """Write how long ago it was; the time itself is in the title."""
    seconds = (now - _time(time)).total_seconds()
    text = "just now" if seconds < 2 else f"{span(round(seconds)).replace('.0', '')} ago"
    return Markup('<time datetime="{}" title="{}Z">{}</time>').format(_time(time).isoformat(), _moment(time), text)


def _brief(count: int) -> str:
    """Write a count for a narrow column: 950, 12.3 k, 4.5 M."""
    for size, unit, least in ((1e9, "G", 1e9), (1e6, "M", 1e6), (1e3, "k", 1e4)):
        if count >= least:
            return f"{count / size:.1f} {unit}"
    return f"{count:,}"


def _linked(text: str) -> str:
    """Write a tag or a reference, as a link if it stands for an address."""
    link, shown = link_of(text), printable(text)
    return Markup('<a href="{}" rel="noreferrer">{}</a>').format(link, shown) if link else shown


def _until(time: datetime, now: datetime) -> str:
    return f"for {_round(max(0.0, (time - now).total_seconds()))} more"


def _round(seconds: float) -> str:
    unit = next(size for size in (86_400, 3600, 60, 1) if seconds >= 2 * size or size == 1)
    return duration(timedelta(seconds=round(seconds / unit) * unit))


def version_of(connection: Connection) -> str:
    """Return what differs when a list of alerts would."""
    alert, silence = alerts.c, silences.c
    parts = (func.max(alert.updated_at), func.count(alert.id), func.max(silence.id), func.max(silence.ends_at))
    row = connection.execute(select(*(select(part).scalar_subquery() for part in parts))).one()
    return " ".join("-" if part is None else str(part) for part in row)
