import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.rig.command_line import call, invoke
from tests.unit.views.view_scene import record, view_row, view_spec
from tocsin.declare.settings import load_settings
from tocsin.views.applier import Applier
from tocsin.views.row_store import RowStore, store_path

ROOT = Path(__file__).resolve().parents[4]


def test_views_are_listed_with_the_address_of_their_page_while_it_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOCSIN_PROJECT", str(ROOT / "examples" / "words"))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("TOCSIN_WEB__PORT", str(port))
        shown = invoke(["view"])
        assert "word_counts" in shown.output
        assert f"http://127.0.0.1:{port}/views.html#token=" in shown.output
        assert f" http://127.0.0.1:{port}/views\n" in shown.output
        assert "word_counts" in invoke(["view", "--json"]).output
    assert f"nothing serves them on port {port}" in invoke(["view"]).stderr


def test_values_are_shown_as_json_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_PROJECT", str(ROOT / "examples" / "words"))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path))
    with closing(RowStore(store_path(load_settings(), "word_counts"))) as store:
        Applier(view_spec(), store, None).apply([record(view_row("::1", True, more={"a": [None, 0.5]}), 0)])
    assert call("view", "word_counts", "::1")[1].splitlines()[1].split()[:1] == ["::1"]
    assert call("view", "word_counts", "--prefix", ":")[1] == call("view", "word_counts")[1]
    other = invoke(["view", "word_counts", "::1", "--window", "2026-11-19T12:00:10Z"])
    assert "'::1' of a window that starts at 2026-11-19 12:00:10Z, but of others" in str(other.exception)
    assert call("view", "word_counts")[1].rstrip().endswith('true   {"a": [null, 0.5]}')
