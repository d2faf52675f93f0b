"""Make the topics of all that is declared, and of what is declared later."""

from __future__ import annotations

from tocsin.kafka.topics import TopicSpec, ensure_topics, wanted_topics
from tocsin.model.errors import TransientError
from tocsin.project.catalog import Catalog
from tocsin.project.settings import Settings


class DeclaredTopics:
    """The topics that jobs need."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._made: dict[str, TopicSpec] | None = None

    def missing(self, catalog: Catalog) -> str | None:
        """Make topics that are not there yet; return why that failed, None when all are there.

        Asks Kafka only when other topics than the last time are wanted.
        """
        wanted = wanted_topics(self._settings, catalog)
        if wanted != self._made:
            try:
                ensure_topics(self._settings, catalog)
            except TransientError as error:
                return str(error)
            self._made = wanted
        return None
