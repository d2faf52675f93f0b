from pathlib import Path

import pytest

from tests.rig.command_line import invoke
from tocsin.web.passwords import is_password


def test_it_says_where_the_pages_are_and_who_logs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("TOCSIN_WEB__PORT", "1")
    first = invoke(["web"])
    assert first.stdout.startswith("http://127.0.0.1:1\nlog in as operator, with the password in")
    assert "nothing serves the pages on port 1; start it: tocsin dev up" in first.stderr
    hashed = invoke(["web", "--hash-password"], input="battery staple\nbattery staple\n").stdout.splitlines()[-1]
    assert is_password("battery staple", hashed)
    assert not is_password("battery", hashed)
    (tmp_path / "tocsin.toml").write_text(f'[web.users.ann]\npassword = "{hashed}"\n')
    assert invoke(["web"]).stdout.endswith("log in as ann (answer)\n")
    (tmp_path / "tocsin.toml").write_text('[web.users.ann]\npassword = "battery staple"\n')
    refused = str(invoke(["web"]).exception)
    assert "write what `tocsin web --hash-password` prints" in refused
    assert "battery" not in refused
