"""Name the addresses in Airflow at which people find our pages."""

from __future__ import annotations

from airflow.sdk.configuration import conf

PREFIX = "/tocsin"  # where the application behind the pages is mounted

REPORTS = "quality/index.html"
"""The report on all judged days, relative to the state folder and to the pages."""


def address_of(page: str) -> str:
    """Give the address in a browser of `page`, a path below our pages; whoever opens it must be logged in."""
    base: str = conf.get("api", "base_url", fallback="http://localhost:8080")
    return f"{base.rstrip('/')}{PREFIX}/{page}"
