"""Make the topics of all that is declared, and of what is declared later."""

from __future__ import annotations

import time

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.topics import TopicSpec, ensure_topics, wanted_topics

_PAUSE_SECONDS = 60.0  # after a refusal: somebody must change rights first


class DeclaredTopics:
    """The topics that jobs need."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, TopicSpec] | None = None
        self._refusal: str | None = None
        self._refused_at = 0.0

    @property
    def is_refused(self) -> bool:
        """Return whether waiting does not help: Kafka refuses to make the topics that are missing."""
        return self._refusal is not None

    def missing(self, catalog: Catalog) -> str | None:
        """Make topics that are not there yet; return why that failed, None when all are there.

        Asks Kafka only when other topics than the last time are wanted; after a refusal at most once a minute.
        """
        wanted = wanted_topics(self._settings, catalog)
        if wanted != self._made:
            if self._refusal is not None and time.monotonic() - self._refused_at < _PAUSE_SECONDS:
                return self._refusal
            try:
                ensure_topics(self._settings, catalog)
            except TransientError as error:
                return str(error)
            except TocsinError as error:
                self._refusal, self._refused_at = str(error), time.monotonic()
                return self._refusal
            self._refusal = None
            self._made = wanted
        return None
