"""What a job does when its query has ended by itself."""

import queue
from functools import partial
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from tocsin.declare.blocks.spark_settings import ResourceSettings
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform.failures import Unwritable
from tocsin.spark.engine import cluster, jvm
from tocsin.spark.query import query_loop
from tocsin.spark.query.progress import Ended
from tocsin.spark.query.query_loop import QueryLoop
from tocsin.spark.query.work import Run

FULL = "unknown zone 'No space left on device'"


def end(
    tmp_path: Path, *, tries_again: bool, growth: str | None = None, error: str = FULL, on_cluster: bool = False
) -> list[str]:
    """Let a query end with `error`; returns the errors the job counted."""
    errors: list[str] = []

    def failed(_: Any, error: str) -> bool:
        errors.append(error)
        return tries_again

    settings = Settings(project=tmp_path, state=tmp_path)
    settings.checkpoint("a").mkdir(parents=True, exist_ok=True)
    resources = ResourceSettings() if on_cluster else None
    job, run = SimpleNamespace(accept_failure=failed), SimpleNamespace(job="a", resources=resources)
    loop: Any = SimpleNamespace(
        _run=run, _settings=settings, _job=job, _attachment=None,
        _accept_loss=lambda _: False, _change_of_topics=lambda: growth,
    )  # fmt: skip
    query: Any = SimpleNamespace(exception=lambda: ValueError(error))
    QueryLoop._handle_end(loop, query)
    return errors


def test_an_error_that_reads_like_a_full_disk_is_counted_while_there_is_room(tmp_path: Path) -> None:
    assert end(tmp_path, tries_again=True) == [FULL]


def test_a_package_that_executors_lack_is_a_setting_to_be_put_right_and_no_record(tmp_path: Path) -> None:
    lacking = "Traceback:\n  File \"/a.py\", line 1, in detect\nModuleNotFoundError: No module named 'tiny'"
    with pytest.raises(ConfigError, match=r"spark\.master: Python workers find no module 'tiny'; executors"):
        end(tmp_path, tries_again=True, error=lacking, on_cluster=True)
    assert end(tmp_path, tries_again=True, error=lacking) == [lacking]


def test_an_end_for_added_partitions_is_no_failure(tmp_path: Path) -> None:
    """Spark refuses them while it looks for the first offsets; no record is to blame."""
    assert end(tmp_path, tries_again=True, growth="events.logins has grown from 2 to 4 partitions") == []


def test_an_error_of_the_disk_that_has_room_again_ends_the_job_as_unwritable(tmp_path: Path) -> None:
    with pytest.raises(Unwritable):
        end(tmp_path, tries_again=False)


def test_a_job_says_that_its_own_jvm_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "has_ended", lambda: True)
    lost = MagicMock(side_effect=ConnectionRefusedError(111, "Connection refused"))
    with pytest.raises(RuntimeError, match="the JVM has ended"):
        QueryLoop.run_until_stopped(cast(Any, SimpleNamespace(_run_until_stopped=lost, _attachment=None)))


def test_executors_that_are_lost_again_and_again_are_a_failure_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may be what ends them: only as a failure it is looked for."""
    monkeypatch.setattr(query_loop, "has_lost_executor", lambda *_: True)
    run = SimpleNamespace(resources=ResourceSettings(), spark=None, executors=frozenset())
    loop: Any = SimpleNamespace(_run=run, _losses=0)
    assert [QueryLoop._accept_loss(loop, "lost") for _ in range(4)] == [True, True, True, False]


def test_an_executor_that_is_gone_when_the_next_query_begins_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the query before it has ended: a loss may fall into its stop."""
    seen = iter([{"0", "1"}, {"1"}, {"1", "2"}, {"1", "2"}])
    monkeypatch.setattr(cluster, "executors_of", lambda _: frozenset(next(seen)))
    run: Any = SimpleNamespace(
        resources=ResourceSettings(cores=1), spark=None, executors=frozenset(), counts={}, retry=lambda: None
    )
    assert [Run.await_slots(run, 1) for _ in range(4)] == [2, 1, 2, 2]
    assert run.counts == {"executors_lost": 1}


def test_what_a_finished_batch_says_after_its_query_was_stopped_is_taken_before_the_next_one_starts() -> None:
    """Spark tells it on another thread, and the end of the run last."""
    said: queue.SimpleQueue[Any] = queue.SimpleQueue()
    published: list[int] = []
    loop: Any = SimpleNamespace(
        _ended="", _progress=said, _run=SimpleNamespace(started=None),
        _publish=lambda progress: published.append(progress.batch_id),
    )  # fmt: skip
    loop._take_progress = partial(QueryLoop._take_progress, loop)
    Timer(0.1, said.put, [SimpleNamespace(run_id="a", batch_id=7)]).start()
    Timer(0.2, said.put, [Ended("a")]).start()
    QueryLoop._await_end(loop, "a")
    assert published == [7]
