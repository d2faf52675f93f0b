"""Detectors run by the Python of their environment: one becomes that program, of several each group is one."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.models import TEXT
from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
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


def test_packages_that_are_missing_are_said_with_the_line_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_project(tmp_path, "sources")
    (tmp_path / "detectors").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "torch.in").write_text("torch")
    (tmp_path / "lib" / "own.py").write_text("import pandas\nfrom absent.deep import x\n")
    optional = "try:\n    import quick\nexcept ImportError:\n    quick = None\n"
    for name, functions, more in (
        ("here", "import yaml\nfrom lib import own\nimport json\n" + optional, ""),
        ("there", "import torch\n", ', environment="torch"'),
    ):
        text = TEXT.format(more=more, functions=functions, window='"1 hour"')
        (tmp_path / "detectors" / f"{name}.py").write_text(text)

    def found() -> list[str]:
        faults = environments.package_faults(Settings(project=tmp_path), read_catalog(tmp_path))
        return [str(fault).removeprefix(f"{tmp_path}/") for fault in faults]

    monkeypatch.setattr(environments, "is_elsewhere", bool)
    lock = "environments/torch.in: has no torch.txt; run: tocsin packages"
    remedy = "then run: tocsin packages"
    assert found() == [
        lock,
        f"lib/own.py:2: imports absent, which is not installed; name its package in requirements.in, {remedy}",
    ]
    monkeypatch.setattr(environments, "python_in", lambda _, name: Path(sys.executable) if name else None)
    assert found()[2:] == [
        "detectors/there.py:7: imports torch, which is not installed; name its package in environments/torch.in, "
        + remedy
    ]
