"""Batches one after another in one session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tocsin.declare.settings import Settings
from tocsin.spark import batch_session
from tocsin.spark.batch_session import running_batch, shared_session
from tocsin.spark.session import clean_scratch, scratch_folder


def test_batches_of_a_shared_session_start_it_once_and_leave_its_scratch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, seen = Settings(state=tmp_path), list[str]()

    @contextmanager
    def running(_: Settings, job: str) -> Iterator[str]:
        seen.append(f"begin {job}")
        (clean_scratch(settings, job) / "spilled").touch()
        yield f"session of {job}"
        seen.append(f"end {job}")

    monkeypatch.setattr(batch_session, "_running", running)
    with shared_session():
        assert seen == []
        for job in ("land:a", "seal:a", "land:a"):
            with running_batch(settings, job) as spark:
                assert str(spark) == "session of land:a"
                assert scratch_folder(settings, job).is_dir()
        assert (scratch_folder(settings, "land:a") / "spilled").exists()
    assert seen == ["begin land:a", "end land:a"]
    with running_batch(settings, "seal:a") as spark:
        assert str(spark) == "session of seal:a"
