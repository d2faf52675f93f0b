"""Detectors run by the Python of their environment: one becomes that program, of several each group is one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.settings import Settings
from tocsin.platform import environments

PYTHONS = {
    "plain": None,
    "also": None,
    "torch": Path("/torch/python"),
    "more": Path("/torch/python"),
    "two": Path("/2"),
}


class Became(Exception):
    """Raised where the process would be another program."""


@pytest.mark.parametrize(
    ("names", "own", "ran", "became"),
    [
        (["plain", "also"], ["plain", "also"], [], None),
        (["torch", "more"], [], [], ["/torch/python", "-m", "x", "torch", "more"]),
        (["torch", "plain", "more"], ["plain"], [["torch", "more"]], None),
        (["torch", "two"], [], [["torch"], ["two"]], None),
    ],
)
def test_each_group_runs_by_its_python(
    monkeypatch: pytest.MonkeyPatch, names: list[str], own: list[str], ran: list[list[str]], became: list[str] | None
) -> None:
    runs: list[list[str]] = []

    def become(python: Path, arguments: Sequence[str], variables: dict[str, str]) -> None:
        assert variables["PYSPARK_PYTHON"] == str(python)
        raise Became(list(arguments))

    def run(python: Path, arguments: Sequence[str]) -> int:
        runs.append(list(arguments)[2:])
        return 3

    nothing: Any = None
    monkeypatch.setattr(environments, "python_for", lambda _, name, folder: PYTHONS[name])
    monkeypatch.setattr(environments, "run_by", run)
    monkeypatch.setattr(os, "execve", become)
    monkeypatch.setattr(os, "closerange", lambda *_: None)
    settings: Settings = nothing
    if became is not None:
        with pytest.raises(Became) as caught:
            environments.by_their_pythons(settings, names, lambda some: ["-m", "x", *some])
        assert caught.value.args[0] == became
        return
    found = environments.by_their_pythons(settings, names, lambda some: ["-m", "x", *some])
    assert (found, runs) == ((own, 3 if ran else 0), ran)


def test_another_program_of_python_finds_no_jvm_of_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\ntest -z "$PYSPARK_GATEWAY_PORT" && test "$PYSPARK_PYTHON" = "$0" && exit $1\n')
    python.chmod(0o755)
    assert environments.run_by(python, ["7"]) == 7
