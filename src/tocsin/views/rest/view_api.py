"""The REST answers about views: read only, each with how fresh it is."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from tocsin.declare.model.errors import TransientError, nearest
from tocsin.declare.model.view import ViewSpec
from tocsin.declare.settings import Settings
from tocsin.platform.code_versions import FollowedCatalog
from tocsin.views.row_query import Freshness, RowShape, ViewReader
from tocsin.views.row_store import store_path
from tocsin.views.view_summary import ViewSummary, reason_of, summarise

_RETRY = {"Retry-After": "2"}
_MOST = 1_000


class Views(BaseModel):
    """All views."""

    views: list[ViewSummary]


class OneRow(BaseModel):
    """The row of a key, and how fresh it is."""

    row: RowShape
    freshness: Freshness


class Rows(BaseModel):
    """Rows in the order of their names and windows; `next` is the cursor of the next page, null on the last."""

    rows: list[RowShape]
    next: str | None
    freshness: Freshness


class NotYet(BaseModel):
    """The view has no rows to show yet."""

    reason: str


class NotFound(BaseModel):
    """There is no such view or row; `nearest` is a name that is close."""

    detail: str
    nearest: str | None


_ANSWERS: dict[int | str, dict[str, Any]] = {
    202: {"model": NotYet, "description": "no rows yet"},
    304: {"description": "the rows are those of the ETag that was sent"},
    401: {"description": "the token is missing or wrong"},
    404: {"model": NotFound, "description": "no such view or key"},
}
_View = Annotated[str, Path(description="Name of the view.")]
_Key = Annotated[str, Path(description="Name of the row: its key, several columns joined by colons.")]
_Window = Annotated[datetime | None, Query(description="Start of the window; UTC unless it says otherwise.")]


class PageParameters(BaseModel, extra="forbid"):
    """Which rows: those of a window, with names that begin with `prefix`; `cursor` is `next` of the page before."""

    prefix: str = ""
    window: datetime | None = None
    limit: int = Field(default=100, ge=1, le=_MOST)
    cursor: str = ""


class RequestHeaders(BaseModel):
    """The headers that matter: what the reader has, and whether it wants to follow."""

    if_none_match: str = ""
    accept: str = ""
    last_event_id: int | None = None

    @property
    def follows(self) -> bool:
        """Return whether the reader wants events."""
        return EVENT_STREAM in self.accept


_Page = Annotated[PageParameters, Query()]
_Headers = Annotated[RequestHeaders, Header()]


def view_api(views: OpenViews, token: str, is_user: Callable[[Request], Awaitable[bool]]) -> FastAPI:
    """Describe the application; readers send `Authorization: Bearer <token>`, or are logged in as `is_user` says."""

    async def check_token(request: Request) -> None:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        is_reader = scheme.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), token.encode())
        if not is_reader and not await is_user(request):
            raise HTTPException(401, "send the token: Authorization: Bearer ...", {"WWW-Authenticate": "Bearer"})

    api = FastAPI(title="Tocsin: views", version="1", docs_url=None, redoc_url=None)
    api.state.followers = Followers()
    api.include_router(_routes(views, api.state.followers), dependencies=[Depends(check_token)])
    _explain_errors(api)
    return api


def _routes(views: OpenViews, followers: Followers) -> APIRouter:
    routes = APIRouter(responses=_ANSWERS)

    @routes.get("/views", response_model=Views)
    async def list_views() -> Views:
        """List the views, with how fresh each is."""
        return Views(views=[summarise(views.settings, spec) for spec in views.specs().values()])

    @routes.get("/views/{view}", response_model=Rows)
    async def list_rows(view: _View, wanted: _Page, headers: _Headers) -> Response:
        """List the rows of a view; with `Accept: text/event-stream`, send each row that changes from now on."""
        reader, freshness = _fresh(views, view)
        if headers.follows:
            after = freshness.version if headers.last_event_id is None else headers.last_event_id
            follower = Follower(views, view, None, after, prefix=wanted.prefix, window=_utc(wanted.window))
            return _stream(followers, follower)
        try:
            page = reader.page(wanted.prefix, _utc(wanted.window), wanted.limit, wanted.cursor)
        except ValueError as error:
            problem = {"type": "value_error", "loc": ["query", "cursor"], "msg": str(error), "input": wanted.cursor}
            return JSONResponse({"detail": [problem]}, 422)
        rows = Rows(rows=[RowShape.of(row) for row in page.rows], next=page.cursor, freshness=freshness)
        return _answer(rows, f'W/"{freshness.build}-{freshness.version}"', headers, freshness)

    @routes.get("/views/{view}/{key:path}", response_model=OneRow)
    async def show_row(view: _View, key: _Key, headers: _Headers, window: _Window = None) -> Response:
        """Show the row of a key, of its last window; with `Accept: text/event-stream`, it and each later version."""
        reader, freshness = _fresh(views, view)
        if headers.follows:
            return _stream(followers, Follower(views, view, key, headers.last_event_id or 0, window=_utc(window)))
        row = reader.get(key, _utc(window))
        if row is None:
            raise NoSuchName(f"{view} has no row '{key}'", reader.nearest(key))
        shape = RowShape.of(row)
        return _answer(OneRow(row=shape, freshness=freshness), f'W/"{row.build}-{shape.version}"', headers, freshness)

    return routes


def _explain_errors(api: FastAPI) -> None:
    @api.exception_handler(NoRowsYet)
    async def not_yet(_: Request, error: NoRowsYet) -> Response:
        return JSONResponse(NotYet(reason=str(error)).model_dump(), 202, _RETRY)

    @api.exception_handler(NoSuchName)
    async def not_found(_: Request, error: NoSuchName) -> Response:
        return JSONResponse(NotFound(detail=str(error), nearest=error.near).model_dump(), 404)

    @api.exception_handler(TransientError)
    async def later(_: Request, error: TransientError) -> Response:
        return JSONResponse({"detail": str(error)}, 503, _RETRY)


def _fresh(views: OpenViews, view: str) -> tuple[ViewReader, Freshness]:
    reader = views.reader(view)
    freshness = reader.freshness()
    if freshness is None:
        raise NoRowsYet(f"{view} has no rows yet")
    return reader, freshness


def _answer(shape: BaseModel, tag: str, sent: RequestHeaders, freshness: Freshness) -> Response:
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Tocsin-Lag-Seconds": f"{freshness.lag_seconds:.3f}"}
    if tag in sent.if_none_match:
        return Response(status_code=304, headers=headers)
    return Response(shape.model_dump_json(), media_type="application/json", headers=headers)


def _stream(followers: Followers, follower: Follower) -> Response:
    if not followers.take():
        return JSONResponse({"detail": "too many follow views now"}, 503, _RETRY)
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(followers.events(follower), media_type=EVENT_STREAM, headers=headers)


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


EVENT_STREAM = "text/event-stream"
_LOOK_SECONDS, _ALIVE_SECONDS = 0.1, 15.0
_MOST_EVENTS = 100


@dataclass
class Follower:
    """One reader that follows a view, or its row `key`; it has everything up to `version` of the view.

    It follows rows whose name begins with `prefix` alone, and those of the `window` that starts then. Once readers see
    another `build` it gets all rows of that: they may have been written before `version`, while it was filling.
    """

    views: OpenViews
    view: str
    key: str | None
    version: int
    prefix: str = ""
    window: datetime | None = None
    has_row: bool = False
    build: str = ""

    def look(self) -> list[str]:
        """Return what has changed since the last look, as events."""
        try:
            reader = self.views.reader(self.view)
            if (build := reader.build()) != self.build:
                self.build, self.version = build, 0 if self.build else self.version
            own = None if self.key is None else reader.get(self.key, self.window)
            rows, self.version = reader.changes(self.version, own.name if own else self.key)  # `key` may be a value
        except (NoRowsYet, NoSuchName, TransientError):
            return []
        rows = [row for row in rows if row.name.startswith(self.prefix) and self.window in (None, row.window_start)]
        gone = self.has_row and not rows and self.key is not None and own is None
        events = [_event("row", self.version, RowShape.of(row).model_dump_json()) for row in rows]
        self.has_row = not gone and (self.has_row or bool(rows))
        return [*events, _event("removed", self.version, json.dumps({"name": self.key}))] if gone else events


class Followers:
    """All readers that follow; more than 100 at once are refused."""

    def __init__(self) -> None:
        self.count = 0
        self.stopping = False

    def take(self) -> bool:
        """Count one more; False if there are too many."""
        if self.count >= _MOST_EVENTS:
            return False
        self.count += 1
        return True

    async def events(self, follower: Follower) -> AsyncIterator[str]:
        """Give the events of `follower` while there is a server."""
        sent_at = time.monotonic()
        try:
            yield ": following\n\n"
            while not self.stopping:
                events = follower.look()
                for event in events:
                    yield event
                if events:
                    sent_at = time.monotonic()
                elif time.monotonic() - sent_at > _ALIVE_SECONDS:
                    sent_at = time.monotonic()
                    yield ": alive\n\n"
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self.count -= 1


def _event(name: str, version: int, data: str) -> str:
    return f"id: {version}\nevent: {name}\ndata: {data}\n\n"


_OPEN_SECONDS = 1.0


class NoRowsYet(Exception):
    """The view has no rows to show yet; says why."""


class NoSuchName(Exception):
    """There is no view, or no row, of that name; `near` is one that is close."""

    def __init__(self, what: str, near: str | None) -> None:
        self.near = near
        super().__init__(what)


class OpenViews:
    """The views of an installation. For one thread."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._followed = FollowedCatalog(settings)
        self._catalog, self._looked = self._followed.read(), time.monotonic()
        self._open: dict[str, tuple[int, ViewReader]] = {}

    def specs(self) -> dict[str, ViewSpec]:
        """Return the views that are declared, by name."""
        if time.monotonic() - self._looked > _OPEN_SECONDS:
            self._catalog, self._looked = self._followed.read(), time.monotonic()
        return self._catalog.views

    def reader(self, view: str) -> ViewReader:
        """Return the reader of `view`.

        Raises:
            NoSuchName: it is not declared.
            NoRowsYet: its job has not made its file yet.
            TransientError: its file cannot be read now.
        """
        specs = self.specs()
        if view not in specs:
            fault, what = self._catalog.broken.get(f"views/{view}"), f"there is no view '{view}'"
            if fault is not None:
                what = f"the file of the view cannot be read: {fault.faults[0].what}"
            raise NoSuchName(what, nearest(view, specs))
        path = store_path(self.settings, view)
        try:
            number = path.stat().st_ino
            known = self._open.get(view)
            if known is None or known[0] != number:  # `tocsin dev up --reset` makes another file
                if known is not None:
                    known[1].close()
                self._open[view] = known = (number, ViewReader(path))
            return known[1]
        except FileNotFoundError:
            raise NoRowsYet(reason_of(self.settings, view)) from None

    def close(self) -> None:
        """Close all files."""
        for _, reader in self._open.values():
            reader.close()
