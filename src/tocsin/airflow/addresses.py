"""Where in Airflow people find pages of ours."""

from __future__ import annotations

from airflow.sdk.configuration import conf

PREFIX = "/tocsin"
"""Where the application behind the pages is mounted."""

REPORTS = "quality/index.html"
"""The report on all judged days, relative to the state folder and to the pages."""


def address_of(page: str) -> str:
    """What to open in a browser for `page`, a path below the pages of ours; who opens it must be logged in."""
    base: str = conf.get("api", "base_url", fallback="http://localhost:8080")
    return f"{base.rstrip('/')}{PREFIX}/{page}"
