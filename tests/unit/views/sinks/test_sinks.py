"""What holds for every sink, against real servers."""

import base64
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

import psycopg
import pytest
import redis

from tests.rig.samples.words import declare_words
from tests.rig.sink_servers import SinkServer, emptied, running
from tests.unit.views.view_scene import NOON, SECOND, MemorySink, view_row, view_spec
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.setting_blocks import ViewSettings
from tocsin.declare.settings import Settings, load_settings
from tocsin.declare.sinks import SINKS, SinkKind
from tocsin.dev.servers.sink_servers import KINDS
from tocsin.supervise.installed_jobs import setting_variables
from tocsin.views.sinks.sink import Sink, SinkBatch, SinkLost, missing_address, open_sink
from tocsin.views.stored_row import StoredRow

Rows = dict[tuple[str, int], tuple[Any, bool]]


class Server(Protocol):
    """A real one, and what our rows look like in it."""

    def sink(self, **fields: Any) -> Sink: ...
    def rows(self) -> Rows: ...
    def lose(self) -> None: ...


def sink_at(kind: str, address: str, **fields: Any) -> Sink:
    found = open_sink(view_spec(sink=kind, **fields), Settings(views=ViewSettings(**{kind: address})))
    assert found is not None
    return found


class Postgres:
    def __init__(self, address: str) -> None:
        self.address = emptied(address)

    def sink(self, **fields: Any) -> Sink:
        return sink_at("postgres", self.address, **fields)

    def ask(self, query: str) -> list[Any]:
        with psycopg.connect(self.address) as connection:
            found = connection.execute(query)
            return found.fetchall() if found.description else []

    def rows(self) -> Rows:
        found = self.ask("SELECT word, lower(time_window), count, final FROM windowed_counts")
        return {(word, round((start - NOON).total_seconds())): (count, final) for word, start, count, final in found}

    def lose(self) -> None:
        self.ask("ALTER TABLE windowed_counts RENAME TO elsewhere")


class Redis:
    def __init__(self, server: SinkServer) -> None:
        self.server, self.client = server, redis.Redis.from_url(server.address, decode_responses=True)
        self.client.flushall()

    def sink(self, **fields: Any) -> Sink:
        return sink_at("redis", self.server.address, **fields)

    def rows(self) -> Rows:
        found: Rows = {}
        keys: Any = self.client.keys("windowed_counts:*")
        for key in keys:
            _, word, _, minutes, seconds = key.split(":")
            row: Any = self.client.hgetall(key)
            at = int(minutes) * 60 + int(seconds.removesuffix("Z"))
            found[word, at] = json.loads(row["count"]) if "count" in row else None, row["final"] == "true"
        return found

    def lose(self) -> None:
        self.client.flushall()


class Influx:
    def __init__(self, server: SinkServer) -> None:
        self.server = server
        self.lose()

    def sink(self, **fields: Any) -> Sink:
        return sink_at("influx", self.server.address, **fields)

    def ask(self, query: str) -> list[Any]:
        parts = urlsplit(self.server.address)
        login = base64.b64encode(f"{parts.username}:{parts.password}".encode()).decode()
        body = urlencode({"q": query, "db": "views", "epoch": "s"}).encode()
        address = f"http://{parts.hostname}:{parts.port}/query"
        request = urllib.request.Request(address, body, {"Authorization": f"Basic {login}"})
        with urllib.request.urlopen(request) as answer:
            (found,) = json.load(answer)["results"]
        return list(found.get("series", []))

    def rows(self) -> Rows:
        found: Rows = {}
        for series in self.ask('SELECT count, final FROM "windowed_counts" GROUP BY *'):
            for at, count, final in series["values"]:
                found[series["tags"]["word"], at - round(NOON.timestamp())] = count, final
        return found

    def lose(self) -> None:
        self.ask('DROP MEASUREMENT "windowed_counts"')


@pytest.fixture(scope="module")
def redis_server() -> Iterator[SinkServer]:
    with running("redis") as server:
        yield server


@pytest.fixture(scope="module")
def influx_server() -> Iterator[SinkServer]:
    if KINDS["influx"].find() is None:
        pytest.skip(f"no InfluxDB is installed: {KINDS['influx'].install}")
    with running("influx") as server:
        yield server


@pytest.fixture(params=["postgres", "redis", "influx"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    if request.param == "postgres":
        yield Postgres(request.getfixturevalue("postgres"))
    elif request.param == "influx":
        yield Influx(request.getfixturevalue("influx_server"))
    else:
        found = Redis(request.getfixturevalue("redis_server"))
        yield found
        found.client.close()


# InfluxDB remembers no offsets: a point that is written again takes the place of itself.
remembering = pytest.mark.parametrize("server", ["postgres", "redis"], indirect=True)


@pytest.fixture
def opened(server: Server) -> Iterator[Callable[..., Sink]]:
    sinks: list[Sink] = []

    def describe(**fields: Any) -> Sink:
        sinks.append(server.sink(**fields))
        return sinks[-1]

    yield describe
    for sink in sinks:
        sink.close()


def stored(
    word: str, count: Any, window: int | None = 0, *, key: tuple[str, ...] = ("word",), **values: Any
) -> StoredRow:
    row = view_row(word, count, window=window, **values)
    return StoredRow.of(row, key, row.identity, (0, 1, NOON))


def test_rows_are_put_in_place_and_removed(server: Server, opened: Callable[..., Sink]) -> None:
    sink = opened()
    sink.replace([], [], {})
    sink.apply(SinkBatch([stored("a", 1), stored("b", 2), stored("b", 3, 10)], [], {0: 3}))
    sink.apply(SinkBatch([stored("a", 4), stored("b", 2)._replace(is_final=True)], [stored("b", 3, 10)], {0: 5, 1: 2}))
    assert server.rows() == {("a", 0): (4, False), ("b", 0): (2, True)}
    assert sink.offsets() == {0: 5, 1: 2}


@remembering
def test_a_batch_and_its_offsets_arrive_together(server: Server, opened: Callable[..., Sink]) -> None:
    sink = opened()
    assert sink.offsets() is None
    sink.replace([stored("a", 1)], [], {0: 3, 1: 2})
    again = opened()
    assert again.offsets() == {0: 3, 1: 2}
    again.apply(SinkBatch([stored("a", 4)], [stored("none", 1)], {0: 6, 1: 2}))
    assert server.rows() == {("a", 0): (4, False)}


@remembering
def test_what_was_lost_is_noticed_and_filled(server: Server, opened: Callable[..., Sink]) -> None:
    sink = opened()
    sink.replace([stored("a", 1)], [], {0: 1})
    server.lose()
    with pytest.raises(SinkLost):
        sink.apply(SinkBatch([stored("b", 1)], [], {0: 2}))
    assert sink.offsets() is None
    sink.replace([stored("a", 1), stored("b", 1)], [], {0: 2})
    assert server.rows() == {("a", 0): (1, False), ("b", 0): (1, False)}


def test_a_new_build_takes_the_place_of_the_old(server: Server, opened: Callable[..., Sink]) -> None:
    sink = opened()
    sink.replace((stored(f"w{n}", n) for n in range(1200)), [], {0: 1})
    assert len(server.rows()) == 1200
    sink.replace([stored("w1", 7)], (stored(f"w{n}", n) for n in range(1200) if n != 1), {0: 9})
    assert server.rows() == {("w1", 0): (7, False)}
    assert sink.offsets() == {0: 9}


@remembering
def test_another_applier_is_noticed(server: Server, opened: Callable[..., Sink]) -> None:
    first, second = opened(), opened()
    first.replace([], [], {0: 1})
    assert second.offsets() == {0: 1}
    second.apply(SinkBatch([stored("a", 1)], [], {0: 2}))
    with pytest.raises(SinkLost):
        first.apply(SinkBatch([stored("a", 0)], [], {0: 2}))
    assert server.rows() == {("a", 0): (1, False)}


@pytest.mark.parametrize(
    "word", ["a\0b", "a\\u0000b", "ünï\u2028", "it's", "x" * 1_000_000, '"\\', "", "a,b =c\n\\,", "a\\'"]
)
def test_unusual_keys(word: str, server: Server, opened: Callable[..., Sink]) -> None:
    """PostgreSQL cannot index a megabyte, which is counted and holds nothing up."""
    sink = opened()
    sink.replace([stored(word, 1), stored("plain", 1)], [], {0: 1})
    sink.apply(SinkBatch([stored(word, 2)], [], {0: 2}))
    assert sink.refused in (0, 2)
    assert sink.refused == 0 or len(word) == 1_000_000
    sink.apply(SinkBatch([], [stored(word, 2)], {0: 3}))
    if len(word) < 9:
        assert server.rows() == {("plain", 0): (1, False)}


@remembering  # a field of InfluxDB has one type
def test_values_of_every_kind(server: Server, opened: Callable[..., Sink]) -> None:
    def part(value: int) -> Any:
        return {"sum((n % 2))": value}

    sink = opened()
    sink.replace([stored("a", None, more=None)], [], {0: 1})
    sink.apply(SinkBatch([stored("a", 1, more=[1, {"x": "\0"}]), stored("b", 2.5)], [], {0: 2}))
    sink.apply(SinkBatch([stored("a", 2, text="t", yes=True, big=2**70, grows=1, **part(1))], [], {0: 3}))
    sink.apply(SinkBatch([stored("a", 2, grows=2**63, **part(2)), stored("c", 1, grows=1)], [], {0: 4}))
    sink.apply(SinkBatch([stored("c", 1, grows=0.5)], [], {0: 5}))
    sink.apply(SinkBatch([], [stored("c", 1)], {0: 6}))
    assert sink.refused == 0
    assert server.rows() == {("a", 0): (2, False), ("b", 0): (2.5, False)}


def test_redis_hashes_that_the_view_names(redis_server: SinkServer) -> None:
    server = Redis(redis_server)
    sink = server.sink(key=("hash", "field"), window=None)
    rows = [
        StoredRow.of(
            view_row("", 0, window=None).model_copy(update={"key": {"hash": h, "field": f}, "values": {"value": v}}),
            ("hash", "field"), f"{h}-{f}", (0, 1, NOON),
        )
        for h, f, v in (("routes", "d1", "/x"), ("d1::service", "sum", 10.5), ("d1::statuses", "200", 3))
    ]  # fmt: skip
    sink.replace(rows[:2], [], {0: 1})
    sink.apply(SinkBatch(rows[2:], rows[:1], {0: 2}))
    assert server.client.hgetall("d1::service") == {"sum": "10.5"}
    assert server.client.hgetall("d1::statuses") == {"200": "3"}
    assert not server.client.exists("routes")
    two = rows[1]._replace(values={"value": 1, "more": 2})
    sink.apply(SinkBatch([two], [], {0: 3}))
    sink.close()
    windowed = server.sink(key=("hash", "field"))
    windowed.replace([rows[1]._replace(window_start=NOON + at * SECOND) for at in (0, 10)], [two], {0: 4})
    windowed.close()
    assert len(server.client.keys("windowed_counts:*")) == 2, (
        "windows share no field, and the row of two values is gone"
    )
    server.client.close()


def test_a_row_in_redis_of_any_width_and_any_text(redis_server: SinkServer) -> None:
    """A script of Redis takes some thousand arguments at most, and texts travel to it as JSON."""
    server = Redis(redis_server)
    sink = server.sink(window=None)
    values: dict[str, Any] = {f"v{number}": number for number in range(9_001)} | {
        "text": '\0 "\\/ é \U0001f514 \n',
        "share": 1e22,
    }
    sink.replace([stored("a", 1, None, **values)], [], {0: 1})
    sink.close()
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    assert server.client.hgetall("windowed_counts:a") == {"count": "1"} | texts
    server.client.close()


def test_a_table_of_others_is_left_alone(postgres: str) -> None:
    server = Postgres(postgres)
    server.ask("CREATE TABLE windowed_counts (mine int)")
    sink = server.sink()
    with pytest.raises(TransientError, match="not of this view"):
        sink.replace([], [], {})
    sink.close()
    assert server.ask("SELECT * FROM windowed_counts") == []


@pytest.mark.parametrize("change", ["DROP COLUMN count", "RENAME COLUMN count TO n", "DROP COLUMN word"])
def test_a_table_that_somebody_has_altered_is_filled_again(change: str, postgres: str) -> None:
    server = Postgres(postgres)
    sink = server.sink()
    sink.replace([stored("a", 1), stored("b", 2)], [], {0: 2})
    server.ask(f"ALTER TABLE windowed_counts {change}")
    with pytest.raises(SinkLost):
        sink.apply(SinkBatch([stored("b", 3)], [], {0: 3}))
    assert sink.offsets() is None
    sink.replace([stored("a", 1), stored("b", 2)], [], {0: 2})
    sink.apply(SinkBatch([stored("b", 3)], [], {0: 3}))
    assert (server.rows(), sink.offsets()) == ({("a", 0): (1, False), ("b", 0): (3, False)}, {0: 3})
    sink.close()


def test_a_changed_key_makes_the_table_anew(postgres: str) -> None:
    server = Postgres(postgres)
    sink = server.sink()
    sink.replace([stored("a", 1)], [], {0: 1})
    sink.close()
    other = server.sink(key=("word", "count"))
    other.replace([stored("a", 1)], [], {0: 1})
    other.apply(SinkBatch([stored("a", 1)], [], {0: 2}))
    other.close()
    assert server.rows() == {("a", 0): (1, False)}


def test_a_server_that_is_away() -> None:
    for kind, address in (("postgres", "postgresql://nobody@127.0.0.1:1/none"), ("redis", "redis://127.0.0.1:1/0")):
        sink = sink_at(kind, address)
        with pytest.raises(TransientError):
            sink.offsets()
        sink.close()


@pytest.mark.parametrize(
    ("sink", "column", "has_windows", "refused"),
    [
        ("postgres", "ctid", False, True), ("postgres", "final", False, False), ("postgres", "final", True, True),
        ("postgres", "time_window", True, True), ("postgres", "é" * 31, True, False),
        ("postgres", "é" * 32, True, True), ("redis", "final", True, True), ("redis", "x" * 64, True, False),
        ("influx", "time", False, True),
    ],
)  # fmt: skip
def test_a_name_that_a_sink_cannot_hold_is_refused(sink: str, column: str, has_windows: bool, refused: bool) -> None:
    assert bool(SINKS[sink].why_refused(column, has_windows=has_windows)) is refused


def test_a_sink_without_an_address_is_not_written() -> None:
    spec = view_spec(sink="redis")
    assert open_sink(spec, Settings()) is None
    assert "redis has no address; set views.redis" in missing_address(spec, Settings())
    assert missing_address(spec, Settings(views=ViewSettings(redis_file=Path("there")))) == ""
    assert missing_address(view_spec(), Settings()) == ""
    with pytest.raises(ConfigError, match="one job alone"):
        open_sink(view_spec(sink="influx"), Settings(), is_shared=True)


@pytest.mark.parametrize(
    "views",
    [{"postgres": "postgresql://u:se%cret@host/db"}, {"postgres": "u:se%cret@h"}, {"redis": "redis://:se%cret/@h"}],
)
def test_a_faulty_address_is_refused_without_its_password(views: dict[str, str]) -> None:
    (kind,) = views
    with pytest.raises(ConfigError, match=r"such as .* in a password %, / and @ are written as") as caught:
        open_sink(view_spec(sink=kind), Settings(views=ViewSettings.model_validate(views)))
    assert "cret" not in str(caught.value)


def test_a_kind_of_sink_is_a_record_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_words(tmp_path, sink="memory")
    (tmp_path / "tocsin.toml").write_text(f'[views]\nmemory_file = "{tmp_path}/secret"\n')
    (tmp_path / "secret").write_text("memory://here\n")
    (tmp_path / "secret").chmod(0o600)
    with pytest.raises(ConfigError, match="has no sink 'memory_file'; there are postgres"):
        load_settings(tmp_path)
    assert "views/word_counts" in read_catalog(tmp_path).broken
    monkeypatch.setitem(SINKS, "memory", SinkKind("tests.unit.views.view_scene:MemorySink"))
    settings = load_settings(tmp_path)
    sink = open_sink(read_catalog(tmp_path).view("word_counts").shown, settings)
    assert isinstance(sink, MemorySink)
    assert sink.opened == ("memory://here", "tocsin.view:word_counts")
    assert "memory_file" in setting_variables(settings)["TOCSIN_VIEWS"]
