"""Who may send: the file, and the header."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.ingest.log_drain.drain_source import basic
from tocsin.declare.model.errors import ConfigError
from tocsin.ingest.log_drain.endpoint import Credentials, read_passwords


@pytest.mark.parametrize(
    ("header", "who"),
    [
        (basic("router:a:b"), "router"),
        (basic("router:a:b").replace(b"Basic", b"basic"), "router"),
        (basic("router:a"), None),
        (basic("other:a:b"), None),
        (basic("other:"), None),
        (basic("router"), None),
        (b"Basic !", None),
        (b"Basic /w==", None),
        (b"Bearer a:b", None),
        (b"", None),
    ],
)
def test_who_sends(header: bytes, who: str | None) -> None:
    assert Credentials({"router": "a:b"}).source_of(header) == who


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "drain"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_file(tmp_path: Path) -> None:
    assert read_passwords(written(tmp_path, "# who\nrouter:a:b\n\nlogins:c\n")) == {"router": "a:b", "logins": "c"}


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("router:a", 0o640, "chmod 600"),
        ("router:a", 0o604, "chmod 600"),
        ("router:a\nrouter", 0o600, "drain:2: drain.credentials_file: must be source:password"),
        (":a", 0o600, "must be source:password"),
        ("", 0o600, "names no source"),
    ],
)
def test_a_faulty_file_says_what_to_do(tmp_path: Path, text: str, mode: int, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_passwords(written(tmp_path, text, mode))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_passwords(tmp_path / "none")
