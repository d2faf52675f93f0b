"""The kinds of sinks: what keeps a view where."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.model.names import view_job
from tocsin.model.view import SinkKind, ViewSpec
from tocsin.project.settings import Settings
from tocsin.views.sinks.sink import Sink


def open_sink(spec: ViewSpec, settings: Settings) -> Sink | None:
    """Describe the sink that `spec` declares; None if its read model and its topic are all that it asks for.

    Raises:
        ConfigError: its address is not set, cannot be read, or is none.
    """
    describe = _SINKS.get(spec.sink)
    if describe is None:
        return None
    return describe(settings.views.address(spec.sink.value), settings.names.group(view_job(spec.name)), spec)


def _postgres(address: str, consumer: str, spec: ViewSpec) -> Sink:
    from tocsin.views.sinks.postgres_sink import PostgresSink  # noqa: PLC0415 - most views need no psycopg

    return PostgresSink(address, consumer, spec)


def _redis(address: str, consumer: str, spec: ViewSpec) -> Sink:
    from tocsin.views.sinks.redis_sink import RedisSink  # noqa: PLC0415 - most views need no Redis

    return RedisSink(address, consumer, spec.table, names_hashes=spec.key == ("hash", "field"))


def _influx(address: str, consumer: str, spec: ViewSpec) -> Sink:
    from tocsin.views.sinks.influx_sink import InfluxSink  # noqa: PLC0415 - as above

    del consumer  # it remembers no offsets
    return InfluxSink(address, spec.table)


_SINKS: dict[SinkKind, Callable[[str, str, ViewSpec], Sink]] = {
    SinkKind.POSTGRES: _postgres,
    SinkKind.REDIS: _redis,
    SinkKind.INFLUX: _influx,
}
