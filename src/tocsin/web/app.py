"""The application of all pages, for Airflow's API server and for the job `web`; `Access` says who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.datastructures import MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware

from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.settings import Settings
from tocsin.web.access import Access
from tocsin.web.pages import alert, alerts, answer, jobs
from tocsin.web.site import Site

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]

_OPEN = ("/static/", "/answer/", "/login", "/receivers/")
"""What is for everybody: our own files, and pages that look at a signature or a password themselves."""
_LONGEST_BODY = 256 * 1024
"""Bytes; no form of ours and no webhook of PagerDuty is longer."""
# Nothing from elsewhere, nothing inline, framed by Airflow alone. Everything is asked for anew: a page must not outlive
# a login, and never mix two versions of itself.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def pages(settings: Settings, access: Access, opened: tuple[str, ...] = ()) -> FastAPI:
    """The application for one installation; what begins with one of `opened` looks itself who asks."""
    app = FastAPI(title="Tocsin", docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(_check)])
    app.state.site = Site(settings, access)
    app.add_middleware(RequestBodyLimitMiddleware, max_body_size=_LONGEST_BODY)
    app.add_middleware(Gate, access=access, opened=(*_OPEN, *opened))
    for page in (alerts, alert, answer, jobs):
        app.include_router(page.routes)
    app.add_api_route("/", _first_page, methods=["GET"], include_in_schema=False)
    for kind in (TocsinError, HTTPException, RequestValidationError, ValueError, Exception):
        app.add_exception_handler(kind, _explain)
    return app


def _first_page(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}/alerts")


def _check(request: Request) -> None:
    if user := request.scope.get("tocsin.user"):
        request.app.state.site.access.check(request, user)


async def _explain(request: Request, error: Exception) -> Response:
    """Say what is wrong, and what to do: as JSON to our scripts, as a page to people."""
    status, headers, text = 400, {}, str(error)
    if isinstance(error, HTTPException):
        status, headers, text = error.status_code, dict(error.headers or {}), str(error.detail)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        status, text = 422, f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}"
    elif isinstance(error, TransientError):
        status, headers = 503, {"Retry-After": "10"}
        text = f"{text}. The jobs wait for it and lose nothing; this page tries again in ten seconds."
    elif isinstance(error, ConfigError):
        status = 500
    elif not isinstance(error, ValueError):
        status, text = 500, f"This page failed ({type(error).__name__}); the log of its server has all of it."
    is_page = "text/html" in request.headers.get("accept", "")
    site: Site = request.app.state.site
    answer = (
        site.message(request, text, status, headers) if is_page else JSONResponse({"detail": text}, status, headers)
    )
    answer.headers.update(_HEADERS)  # an unexpected error is answered outside of the gate, which adds them
    return answer


class Gate:
    """ASGI middleware that answers nothing to who has not logged in, whatever is asked for, but for the open pages.

    Routes check more than that; but a path that does not exist, or a method that is not allowed, has no route.
    """

    def __init__(self, app: _App, access: Access, opened: tuple[str, ...]) -> None:
        self._app, self._access, self._opened = app, access, opened

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass on what comes from a user, and add the headers of every page to the answer."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            if scope["method"] == "HEAD":  # routes know GET alone; the server leaves out the body
                scope = {**scope, "method": "GET"}
            await (await self._choose(Request(scope)))(scope, receive, _with_headers(send))

    async def _choose(self, request: Request) -> _App:
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        request.scope["tocsin.user"] = user = await self._access.user(request)
        if user is None and not path.startswith(self._opened):
            return self._access.refusal(request)
        # Browsers say where a form was: a second look beside its own token, and the only one at the login.
        if request.method != "GET" and request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return JSONResponse({"detail": "This was sent by a page of another site."}, 403)
        return self._app


def _with_headers(send: _Send) -> _Send:
    async def add(message: _Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return add
