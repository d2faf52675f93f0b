import socket
from pathlib import Path

import pytest

from tests.rig.command_line import invoke

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
