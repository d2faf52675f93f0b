"""Load the project for a verb: imported when it runs, for that takes a quarter of a second, and --help is quick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from tocsin.cli.output import note

if TYPE_CHECKING:
    from tocsin.alerts.store.database import Database
    from tocsin.declare.catalog import Catalog
    from tocsin.declare.model.alert_matcher import AlertMatcher
    from tocsin.declare.settings import Settings


def load_settings() -> Settings:
    """Load the settings; ConfigError if they are wrong."""
    from tocsin.declare import settings

    return settings.load_settings()


def load_project() -> tuple[Settings, Catalog]:
    """Load the settings and read all declarations; ConfigError if the settings are wrong."""
    from tocsin.declare import catalog

    return catalog.load_project()


def note_idle(matchers: Mapping[str, AlertMatcher]) -> None:
    """Say which of `matchers`, by what they belong to, take no alert of any declared detector, and why."""
    _, catalog = load_project()
    for what, matcher in matchers.items():
        if why := catalog.why_idle(matcher):
            note(f"{what} {why}", style="yellow")


def note_left_out(found: Sized, limit: int, detector: str | None) -> None:
    """Say that a list may be cut by `limit`, or is empty because there is no `detector` of this name."""
    from tocsin.declare.model.alert_matcher import AlertMatcher

    if len(found) >= limit:
        note(f"at most {limit:,} are listed; --limit lists more", style="yellow")
    if detector and not found:
        note_idle({f"--detector {detector}": AlertMatcher(detector=(detector,))})


@contextmanager
def reading_alerts() -> Iterator[Database]:
    """Open the alerts DB for reading; ConfigError if its address is wrong."""
    from tocsin.alerts.store.queries import open_store

    with closing(open_store(load_settings())) as database:
        yield database
