"""The AppCDS archive: Spark's classes, parsed once and mapped by every later JVM, which halves the start of a job."""

from __future__ import annotations

from tocsin.settings import Settings


def options(settings: Settings) -> list[str]:
    """JVM options that use the archive; none where it is switched off or not there yet."""
    return []
