"""The kinds of sinks: which module keeps a view where, and the setting with its address."""

from __future__ import annotations

from tocsin.model.view import SinkKind, ViewSpec
from tocsin.project.settings import Settings
from tocsin.views.sinks.sink import Sink


def open_sink(spec: ViewSpec, settings: Settings) -> Sink | None:
    """Describe the sink that `spec` declares; None if the read model and the topic are all it asks for.

    Raises:
        ConfigError: its address is not set, or cannot be read.
    """
    del settings
    if spec.sink in (SinkKind.SQLITE, SinkKind.TOPIC):
        return None
    raise NotImplementedError
