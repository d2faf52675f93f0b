"""Batches one after another in one session."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tocsin.declare.settings import Settings
from tocsin.spark import batch_session
from tocsin.spark.batch_session import engine_settings, running_batch, shared_session
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


class _Attachment:
    """What a batch has of an engine that has ended, or has not."""

    session = "its session"

    def __init__(self, *, is_lost: bool) -> None:
        self._is_lost = is_lost

    def claim(self, _: Path) -> None: ...
    def close(self) -> None: ...
    def is_lost(self, _: float) -> bool:
        return self._is_lost


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_batch_says_that_its_engine_has_ended_and_where_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(batch_session, "_master", lambda _: batch_session.MASTER)
    monkeypatch.setattr(batch_session, "_attach", lambda *_: _Attachment(is_lost=is_lost))
    settings = Settings(state=tmp_path)
    with capture_logs() as logged, pytest.raises(ZeroDivisionError), running_batch(settings, "seal:a"):
        raise ZeroDivisionError
    assert [line["log"] for line in logged] == [str(engine_settings(settings).state / "engine.log")] * is_lost
