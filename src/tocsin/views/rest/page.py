"""Serve the page that shows views with their numbers moving. It holds no data, and asks for that with the token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import APIRouter, Response

_FOLDER = Path(__file__).parent / "static"
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; script-src 'self'; style-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_routes() -> APIRouter:
    """Describe the page and its files."""
    routes = APIRouter(include_in_schema=False)
    for path, (name, kind) in _FILES.items():
        routes.add_api_route(path, _sender((_FOLDER / name).read_bytes(), kind), methods=["GET"])
    return routes


def _sender(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(content, headers=_HEADERS, media_type=kind)

    return send
