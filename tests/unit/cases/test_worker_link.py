"""The process that runs cases is found only where nobody else can answer in its place."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tocsin.cases import worker_link
from tocsin.cases.case_report import Way
from tocsin.cases.worker_link import TestRequest, run_cases
from tocsin.model.errors import ConfigError, TransientError
from tocsin.project.settings import Settings


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TestRequest:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return TestRequest(project=tmp_path, names=["d"], ways=[Way.BATCH])


@pytest.mark.parametrize(("mode", "other"), [(0o755, 0), (0o770, 0), (0o700, 1)])
def test_a_folder_that_others_may_enter_or_own_is_refused(
    request_: TestRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, other: int
) -> None:
    user = tmp_path.stat().st_uid + other
    monkeypatch.setattr(os, "getuid", lambda: user)
    folder = tmp_path / f"tocsin-cases-{user}"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="only you may enter"):
        run_cases(Settings(), request_)


def test_another_installation_has_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process reads the settings of a project with its own variables, which say where the tables are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def socket() -> Path:
        with worker_link._place(Settings(), keep=True) as place:
            return place.socket

    before = socket()
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    assert socket() == before, "it is told the project"
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "another"))
    assert socket() != before


def test_a_process_that_does_not_start_is_told_with_its_last_words(
    request_: TestRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(TransientError, match="does not start: it has written nothing"):
        run_cases(Settings(), request_, keep=False)
