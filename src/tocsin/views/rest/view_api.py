"""The REST answers about views: read only, each with how fresh it is."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Path, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from tocsin.declare.model.errors import TransientError
from tocsin.views.rest.event_stream import EVENT_STREAM, Follower, Followers
from tocsin.views.rest.open_views import NoRowsYet, NoSuchName, OpenViews
from tocsin.views.row_query import Freshness, PageQuery, RowShape, ViewReader
from tocsin.views.view_summary import ViewSummary, summarise

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


class PageParameters(BaseModel):
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
            after = headers.last_event_id
            return _stream(followers, Follower(views, view, None, freshness.version if after is None else after))
        try:
            page = reader.page(PageQuery(wanted.prefix, _utc(wanted.window), wanted.limit, wanted.cursor))
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
            return _stream(followers, Follower(views, view, key, headers.last_event_id or 0))
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
