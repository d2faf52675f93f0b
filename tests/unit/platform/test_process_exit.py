from pathlib import Path

import pytest

from tocsin.platform import process_exit


def ask(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a process that is to tell its end in `file`."""
    for name, value in process_exit.variables(file).items():
        monkeypatch.setenv(name, value)


def test_what_is_told_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.exit"
    for code in (2, 0, -9, 255):
        ask(file, monkeypatch)
        assert process_exit.read(file) is None, "what an earlier process told is forgotten"
        taken = file.stat().st_size
        assert process_exit.record(code) == code
        assert file.stat().st_size == taken, "to tell needs no more room than was taken"
        assert process_exit.read(file) == code


def test_nobody_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOCSIN_EXIT", raising=False)
    assert process_exit.record(1) == 1
    assert process_exit.read(tmp_path / "job.exit") is None


def test_a_file_that_is_gone_hides_no_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_EXIT", str(tmp_path / "gone" / "job.exit"))
    assert process_exit.record(3) == 3


def test_one_that_ends_after_the_next_was_asked_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "job.exit"
    ask(file, monkeypatch)
    process_exit.variables(file)
    assert process_exit.record(0) == 0
    assert process_exit.read(file) is None
