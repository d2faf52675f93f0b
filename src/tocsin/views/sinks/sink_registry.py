"""The kinds of sinks: what keeps a view where."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.model.names import view_job
from tocsin.model.view import SinkKind, ViewSpec
from tocsin.project.settings import Settings
from tocsin.views.sinks.sink import Sink


def open_sink(spec: ViewSpec, settings: Settings) -> Sink | None:
    """Describe the sink that `spec` declares; None if it asks for none, or for one without an address.

    Raises:
        ConfigError: its address cannot be read, or is none.
    """
    describe = _SINKS.get(spec.sink)
    address = None if describe is None else settings.views.address(spec.sink.value)
    if describe is None or address is None:
        return None
    return describe(address, settings.names.group(view_job(spec.name)), spec)


def missing_address(spec: ViewSpec, settings: Settings) -> str:
    """Say that the sink of `spec` is not written because it has no address; empty if it has one or needs none."""
    kind = spec.sink.value
    if spec.sink not in _SINKS or settings.views.has_address(kind):
        return ""
    return f"kept in SQLite alone: {kind} has no address; set views.{kind} or views.{kind}_file in tocsin.toml"


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
