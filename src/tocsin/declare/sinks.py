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
        is_mixed: whether several views may write one table: keys of other columns are other series there.
        taken, taken_by_windows: names that no column may have, in any view, or in one with windows.
        longest_name: of a column, in bytes; None without a limit.
    """

    sink: str
    is_shared: bool = True
    is_mixed: bool = False
    taken: tuple[str, ...] = ()
    taken_by_windows: tuple[str, ...] = ("final",)
    longest_name: int | None = None

    def why_refused(self, column: str, *, has_windows: bool) -> str:
        """Say why it cannot hold a column of this name; empty if it can."""
        if column in (*self.taken, *(self.taken_by_windows if has_windows else ())):
            return "is a name that the sink itself uses"
        if self.longest_name is not None and not 0 < len(column.encode()) <= self.longest_name:
            return f"is no name of at most {self.longest_name} bytes, as the sink needs"
        return ""


SINKS: dict[str, SinkKind] = {
    "postgres": SinkKind(
        "tocsin.views.sinks.postgres_sink:PostgresSink",
        taken=("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"),
        taken_by_windows=("final", "time_window"),
        longest_name=63,
    ),
    "redis": SinkKind("tocsin.views.sinks.redis_sink:RedisSink"),
    # It remembers no offsets.
    "influx": SinkKind("tocsin.views.sinks.influx_sink:InfluxSink", is_shared=False, is_mixed=True, taken=("time",)),
}


def check_sink(name: str) -> str:
    """Return `name` if a view may name it as its sink; ValueError if it may not."""
    names = ("sqlite", *SINKS, "topic")
    if name not in names:
        raise ValueError(f"must be {', '.join(map(repr, names[:-1]))} or {names[-1]!r}, not {name!r}")
    return name
