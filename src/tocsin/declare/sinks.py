"""The kinds of servers to which the rows of a view can be copied.

To add one, write a module with its sink (see `tocsin.views.sinks.sink.Sink`) and enter its record here. A server that
`tocsin dev up` can start has a record in `tocsin.dev.servers.sink_servers` too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SinkKind:
    """One kind of server. Views name it by `sink="NAME"`; its address is the setting `views.NAME` or `views.NAME_file`.

    Attributes:
        sink: `module:class`, made from an address, the name under which it remembers offsets, and a `ViewSpec`; it
            checks the address. A text, since views are read where the libraries of sinks are missing.
        is_shared: whether several jobs may write the rows of one view.
    """

    sink: str
    is_shared: bool = True


SINKS: dict[str, SinkKind] = {
    "postgres": SinkKind("tocsin.views.sinks.postgres_sink:PostgresSink"),
    "redis": SinkKind("tocsin.views.sinks.redis_sink:RedisSink"),
    "influx": SinkKind("tocsin.views.sinks.influx_sink:InfluxSink", is_shared=False),  # it remembers no offsets
}


def check_sink(name: str) -> str:
    """Return `name` if a view may name it as its sink; ValueError if it may not."""
    names = ("sqlite", *SINKS, "topic")
    if name not in names:
        raise ValueError(f"must be {', '.join(map(repr, names[:-1]))} or {names[-1]!r}, not {name!r}")
    return name
