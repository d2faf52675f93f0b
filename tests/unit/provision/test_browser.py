from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tocsin.model.errors import ConfigError
from tocsin.provision import browser


class Machine:
    """A machine with some programs; apt-get may bring a browser."""

    def __init__(self, folder: Path, *programs: str) -> None:
        self.folder, self.brings = folder, "chromium"
        self.ran: list[str] = []
        for name in programs:
            self.add(name)

    def add(self, name: str) -> None:
        path = self.folder / name
        path.touch(mode=0o755)

    def run(self, command: list[str], what: str, env: Mapping[str, str]) -> str:
        self.ran.append(" ".join(command))
        assert env["DEBIAN_FRONTEND"] == "noninteractive"
        if "install" in command and self.brings:
            self.add(self.brings)
        return ""


def machine(monkeypatch: pytest.MonkeyPatch, folder: Path, *programs: str, user: int = 0) -> Machine:
    made = Machine(folder, *programs)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(browser, "run", made.run)
    return made


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_one_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    made = machine(monkeypatch, tmp_path, name, "apt-get")
    assert browser.install() is False
    assert (browser.find(), made.ran) == (tmp_path / name, [])


def test_else_debians_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = machine(monkeypatch, tmp_path, "apt-get")
    assert browser.install() is True
    assert made.ran == ["apt-get update", "apt-get install --yes --no-install-recommends chromium"]
    assert browser.find() == tmp_path / "chromium"


def test_an_ordinary_user_asks_sudo_which_may_not_ask_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = machine(monkeypatch, tmp_path, "apt-get", "sudo", user=1000)
    browser.install()
    assert all(command.startswith("sudo --non-interactive apt-get ") for command in made.ran)


@pytest.mark.parametrize(("programs", "user"), [((), 0), (("apt-get",), 1000)])
def test_where_it_cannot_be_installed_that_is_said_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, programs: tuple[str, ...], user: int
) -> None:
    made = machine(monkeypatch, tmp_path, *programs, user=user)
    with pytest.raises(ConfigError, match="then run: make setup-browser"):
        browser.install()
    assert made.ran == []


def test_a_package_that_brings_none_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine(monkeypatch, tmp_path, "apt-get").brings = ""
    with pytest.raises(ConfigError, match="though the package chromium was installed"):
        browser.install()
