"""What is answered to whom, asked as an ASGI server asks."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request

from tests.rig.samples.words import declare_words
from tests.unit.views.view_scene import NOON, record, view_row, view_spec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.views.applier import Applier
from tocsin.views.rest.view_api import Follower, OpenViews, view_api
from tocsin.views.row_store import RowStore, store_path
from tocsin.web.server import read_token, token_file

EVENTS = {"accept": "text/event-stream"}


async def nobody(_: Request) -> bool:
    """Nobody is logged in."""
    return False


class Api:
    """The application of one project, and what its view holds."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.app = view_api(OpenViews(settings), "secret", nobody)
        self.store: RowStore | None = None

    def fill(self, count: int = 5) -> Applier:
        self.store = RowStore(store_path(self.settings, "word_counts"))
        applier = Applier(view_spec(), self.store, None)
        applier.apply([record(view_row(f"w{n}", n), n) for n in range(count)])
        self.store.note(freshness={"watermark": NOON.isoformat(), "at": "2020-01-01T00:00:00+00:00", "lag_records": 7})
        return applier

    def ask(self, path: str, query: str = "", token: str = "secret", **headers: str) -> tuple[int, dict[str, str], Any]:
        status, found, chunks = asyncio.run(self._ask(path, query, token, headers))
        text = "".join(chunks)
        return status, found, json.loads(text) if found.get("content-type") == "application/json" else text

    async def _ask(
        self, path: str, query: str, token: str, headers: dict[str, str], until: str = ""
    ) -> tuple[int, dict[str, str], list[str]]:
        """Read the whole answer, or until it holds a text."""
        named = {"authorization": f"Bearer {token}"} | {n.replace("_", "-"): text for n, text in headers.items()}
        pairs = [(name.encode(), text.encode()) for name, text in named.items()]
        scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": pairs}
        answers: list[Any] = []
        enough = asyncio.Event()

        async def receive() -> Any:
            if not hasattr(receive, "asked"):
                receive.asked = True  # type: ignore[attr-defined]
                return {"type": "http.request", "body": b"", "more_body": False}
            await enough.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            answers.append(message)
            if until and until.encode() in message.get("body", b""):
                enough.set()

        await asyncio.wait_for(self.app(scope | {"http_version": "1.1", "root_path": ""}, receive, send), 20)
        start, *bodies = answers
        return (
            start["status"],
            {n.decode(): t.decode() for n, t in start["headers"]},
            [body.get("body", b"").decode() for body in bodies],
        )


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    declare_words(tmp_path, keep="60 seconds")
    found = Api(Settings(project=tmp_path, state=tmp_path / "state"))
    yield found
    if found.store is not None:
        found.store.close()


def test_rows_come_in_pages_with_their_freshness(api: Api) -> None:
    api.fill()
    status, _, first = api.ask("/views/word_counts", "prefix=w&limit=3&window=2026-11-19T12:00:00")
    assert (status, [row["name"] for row in first["rows"]]) == (200, ["w0", "w1", "w2"])
    assert first["freshness"]["watermark"] == "2026-11-19T12:00:00Z"
    assert first["freshness"]["lag_records"] is None  # the job has not reported since 2020
    assert first["freshness"]["lag_seconds"] > 1_000_000
    _, _, second = api.ask("/views/word_counts", f"prefix=w&limit=3&cursor={first['next']}")
    assert ([row["name"] for row in second["rows"]], second["next"]) == (["w3", "w4"], None)
    _, _, one = api.ask("/views/word_counts/w3")
    assert one["row"]["values"] == {"count": 3}
    assert one["row"]["window_start"] == "2026-11-19T12:00:00Z"
    assert [view["name"] for view in api.ask("/views")[2]["views"]] == ["word_counts"]


def test_what_the_reader_has_is_not_sent_again(api: Api) -> None:
    applier = api.fill()
    for path in ("/views/word_counts", "/views/word_counts/w1"):
        tag = api.ask(path)[1]["etag"]
        status, headers, body = api.ask(path, if_none_match=tag)
        assert (status, body, "tocsin-lag-seconds" in headers) == (304, "", True)
    applier.apply([record(view_row("w2", 9), 20)])
    assert api.ask("/views/word_counts/w1", if_none_match=tag)[0] == 304
    applier.apply([record(view_row("w1", 9), 21)])
    assert api.ask("/views/word_counts/w1", if_none_match=tag)[0] == 200


@pytest.mark.parametrize(
    ("path", "query", "status", "expected"),
    [
        ("/views/word_count", "", 404, {"nearest": "word_counts"}),
        ("/views/word_counts/w44", "", 404, {"nearest": "w4"}),
        ("/views/word_counts/w1", "window=2026-11-19T13:00:00Z", 404, {"nearest": "w1"}),
        ("/views/word_counts", "limit=0", 422, "limit"),
        ("/views/word_counts", "limit=many", 422, "limit"),
        ("/views/word_counts", "page=2", 422, "page"),
        ("/views/word_counts", "cursor=nonsense", 422, "cursor"),
        ("/views/word_counts/w1", "window=noon", 422, "window"),
        ("/nothing", "", 404, {"detail": "Not Found"}),
    ],
)
def test_refusals(api: Api, path: str, query: str, status: int, expected: Any) -> None:
    api.fill()
    found, _, body = api.ask(path, query)
    assert found == status
    if status == 422:
        assert body["detail"][0]["loc"][-1] == expected
    else:
        assert expected.items() <= body.items()


def test_nobody_reads_without_the_token(api: Api) -> None:
    api.fill()
    for path in ("/views", "/views/word_counts", "/views/word_counts/w1"):
        status, headers, _ = api.ask(path, token="guess")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert api.ask("/openapi.json", token="")[0] == 200


def test_there_is_nothing_yet(api: Api) -> None:
    status, headers, body = api.ask("/views/word_counts")
    assert (status, headers["retry-after"]) == (202, "2")
    assert body == {"reason": "view:word_counts does not run"}
    assert api.ask("/views")[2]["views"][0]["freshness"] is None
    api.fill(0)
    assert api.ask("/views/word_counts/w1")[0] == 202


@pytest.mark.parametrize("word", ["w1", "w:1"])  # the name of the second is w%3A1
def test_changes_are_sent_while_they_happen(api: Api, word: str) -> None:
    applier = api.fill()
    applier.apply([record(view_row(word, 1), 10)])

    async def follow() -> list[str]:
        asked = asyncio.create_task(api._ask(f"/views/word_counts/{word}", "", "secret", EVENTS, until="removed"))
        chosen = "prefix=w&window=2026-11-19T12:00:00"
        everything = asyncio.create_task(api._ask("/views/word_counts", chosen, "secret", EVENTS, until='"count":7'))
        for number, count in enumerate((5, 6, 7)):
            await asyncio.sleep(0.3)
            others = [record(view_row("x", 9), 30 + number), record(view_row(word, 9, window=10), 40 + number)]
            applier.apply([*others, record(view_row(word, count), 20 + number)])
        sent = "".join((await everything)[2])
        assert (sent.count("event: row"), '"count":9' in sent) == (3, False)
        await asyncio.sleep(0.3)
        applier.apply([record(None, 50 + at, key=view_row(word, 0, window=at).identity) for at in (0, 10)])
        return (await asked)[2]

    events = [one for one in asyncio.run(follow()) if one.startswith("id:")]
    counts = [json.loads(one.partition("data: ")[2])["values"]["count"] for one in events[:-1]]
    assert [count for count in counts if count != 9] == [1, 5, 6, 7]
    assert "event: removed" in events[-1]
    assert api.app.state.followers.count == 0


def test_who_comes_while_a_build_fills_gets_its_rows_at_the_switch(api: Api) -> None:
    applier, views = api.fill(), OpenViews(api.settings)
    applier.apply([record(view_row("w1", 7, build="b"), 10)])
    fresh = views.reader("word_counts").freshness()
    assert fresh is not None
    follower = Follower(views, "word_counts", None, fresh.version)
    assert follower.look() == []
    applier.switch("b")
    assert ['"count":7' in event for event in follower.look()] == [True]
    assert follower.look() == []
    views.close()


def test_the_token_is_made_once_and_is_for_its_owner(tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, state=tmp_path / "my state")
    token = read_token(settings)
    assert len(token) > 20
    assert read_token(settings) == token
    assert token_file(settings).stat().st_mode & 0o777 == 0o600
    token_file(settings).chmod(0o644)
    with pytest.raises(ConfigError, match=r"chmod 600 '.*/my state/web.token'"):
        read_token(settings)
