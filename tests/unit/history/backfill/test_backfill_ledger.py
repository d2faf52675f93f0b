"""What is published for a day changes at once or not at all, and a reader never sees half of it."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.rig.samples.backfills import DAY, NEXT, SPEC, attempt, finding, published
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import (
    BackfillLedger,
    Backfills,
    BrokenFindings,
    End,
    Made,
    backfill_outcomes,
    backfilled,
    counts,
)
from tocsin.history.seal_outcomes import DayOutcome
from tocsin.platform import state_file
from tocsin.platform.state_file import write_whole

MADE = Made(version=SPEC.version, inputs={DAY: "v1"})


@pytest.fixture
def backfills(tmp_path: Path) -> Backfills:
    return Backfills(Settings(project=tmp_path, state=tmp_path / "state"), "failed_logins")


def files(backfills: Backfills) -> list[str]:
    return sorted(str(path.relative_to(backfills.folder)) for path in backfills.folder.rglob("*") if path.is_file())


def test_a_day_is_read_back_as_it_was_published_and_replaced_whole(backfills: Backfills, tmp_path: Path) -> None:
    assert backfills.read() == BackfillLedger()
    first = backfills.publish(DAY, [finding("u"), finding("v")], published(MADE, backfills.next_run(DAY)))
    assert backfills.read().published == {DAY: first}
    assert [one.entity["user_id"] for one in backfills.findings(DAY, first)] == ["u", "v"]
    second = backfills.publish(DAY, [finding("w")], published(MADE, backfills.next_run(DAY)))
    assert second.run > first.run
    assert [one.entity["user_id"] for one in backfills.findings(DAY, second)] == ["w"]
    assert files(backfills) == [f"dt={DAY}/{second.run}.jsonl.gz", "ledger.json"]
    with pytest.raises(BrokenFindings, match="is gone"):
        backfills.findings(DAY, first)
    assert backfilled(Settings(project=tmp_path, state=tmp_path / "state")) == ["failed_logins"]


def test_a_day_without_findings_is_published_too(backfills: Backfills) -> None:
    one = backfills.publish(DAY, [], published(MADE))
    assert one.findings == 0
    assert list(backfills.findings(DAY, one)) == []


def test_what_is_not_what_was_written_is_refused(backfills: Backfills) -> None:
    one = backfills.publish(DAY, [finding("u")], published(MADE))
    (backfills.folder / f"dt={DAY}" / f"{one.run}.jsonl.gz").write_bytes(b"other")
    with pytest.raises(BrokenFindings, match=f"run failed_logins for {DAY} again"):
        backfills.findings(DAY, one)


@pytest.mark.parametrize("fails", ["findings", "ledger"])
def test_a_full_disk_leaves_what_counted(backfills: Backfills, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    first = backfills.publish(DAY, [finding("u")], published(MADE))

    def write(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
        if (path.name == "ledger.json") is (fails == "ledger"):
            raise OSError(28, "No space left on device")
        write_whole(path, content, mode=mode)

    monkeypatch.setattr("tocsin.history.backfill.backfill_ledger.write_whole", write)
    monkeypatch.setattr(state_file, "write_whole", write)
    with pytest.raises(OSError, match="No space"):
        backfills.publish(DAY, [finding("v")], published(MADE, backfills.next_run(DAY)))
    assert backfills.read().published == {DAY: first}
    assert [one.entity["user_id"] for one in backfills.findings(DAY, first)] == ["u"]


def test_a_backfill_that_is_killed_anywhere_half_publishes_no_day(
    backfills: Backfills, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies there before each change of a name is what `kill -9` leaves."""
    days, left = (DAY, NEXT), tmp_path / "left"

    def publish(score: float) -> None:
        for day in days:
            run = published(MADE, backfills.next_run(day))
            backfills.publish(day, [finding(user, day, score=score) for user in "uv"], run)

    publish(60)

    def copied(change: Callable[..., Any]) -> Callable[..., Any]:
        def copy_and_change(path: Path, *given: Any, **options: Any) -> Any:
            shutil.copytree(backfills.folder, left / f"{len(list(left.glob('*'))):02}")
            return change(path, *given, **options)

        return copy_and_change

    monkeypatch.setattr(Path, "replace", copied(Path.replace))
    monkeypatch.setattr(Path, "unlink", copied(Path.unlink))
    publish(70)
    monkeypatch.undo()
    steps, seen = sorted(left.iterdir()), []
    for step in steps:
        shutil.rmtree(backfills.folder)
        shutil.copytree(step, backfills.folder)
        ledger = backfills.read()
        assert ledger.published.keys() == set(days)
        found = [[one.score for one in backfills.findings(day, ledger.published[day])] for day in days]
        assert all(scores in ([60, 60], [70, 70]) for scores in found)
        seen.append([scores[0] for scores in found])
        publish(80)
        backfills.forget(DAY)
        known = [f"dt={day}/{one.run}.jsonl.gz" for day, one in backfills.read().published.items()]
        assert files(backfills) == [*sorted(known), "ledger.json"], "nothing that counts no more is left behind"
    assert seen == sorted(seen)
    assert [60, 60] in seen
    assert [70, 60] in seen
    assert [70, 70] in seen


def test_an_attempt_in_vain_is_noted_until_the_day_is_published(backfills: Backfills) -> None:
    first = backfills.publish(DAY, [finding("u")], published(MADE))
    backfills.note(DAY, attempt(End.HELD, MADE))
    assert backfills.read().published == {DAY: first}, "it goes on to count"
    assert backfills.read().attempts.keys() == {DAY}
    backfills.publish(DAY, [], published(MADE, backfills.next_run(DAY)))
    assert backfills.read().attempts == {}


def test_days_beyond_history_and_files_of_killed_runs_are_forgotten(backfills: Backfills) -> None:
    for day in (DAY, NEXT):
        backfills.publish(day, [finding("u", day)], published(MADE))
    backfills.note(DAY - timedelta(days=1), attempt(End.FAILED, None))
    left = backfills.folder / f"dt={NEXT}" / "20991231T000000000Z.jsonl.gz"
    left.write_bytes(b"of a run that was killed before it was published")
    (backfills.folder / ".ledger.json.0a1b2c3d").write_bytes(b"of one that was killed while it did")
    (backfills.folder / f"dt={NEXT}" / ".20991231T000000000Z.jsonl.gz.0a1b2c3d").touch()
    backfills.forget(NEXT)
    kept = backfills.read()
    assert (set(kept.published), kept.attempts) == ({NEXT}, {})
    assert files(backfills) == [f"dt={NEXT}/{kept.published[NEXT].run}.jsonl.gz", "ledger.json"]


def test_a_broken_ledger_counts_as_none(backfills: Backfills) -> None:
    backfills.publish(DAY, [], published(MADE))
    backfills.file.write_text("{")
    assert backfills.read() == BackfillLedger()


def test_counts_are_those_of_known_days(backfills: Backfills) -> None:
    backfills.publish(DAY, [finding("u"), finding("v")], published(MADE))
    assert counts(backfills.read().published, [NEXT, DAY]) == [2]


def test_a_run_tells_of_its_own_days_only(backfills: Backfills, tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, state=tmp_path / "state")
    other = Backfills(settings, "other")
    of_other = {"run_id": "other"}
    backfills.publish(
        DAY, [finding("u")], published(MADE).model_copy(update={"severity": "warning", "report": "a.html"})
    )
    backfills.publish(NEXT, [], published(MADE).model_copy(update=of_other))
    other.note(DAY, attempt(End.HELD, MADE).model_copy(update=of_other))
    other.note(NEXT, attempt(End.HELD, MADE).model_copy(update={"report": "held.html"}))
    assert backfill_outcomes(settings, ["other", "never_run", "failed_logins"], "night") == [
        DayOutcome("failed_logins", DAY, True, "published, 1 finding, verdict warning", "a.html"),
        DayOutcome("other", NEXT, False, "held: so it is", "held.html"),
    ]


def test_the_last_try_of_a_run_says_what_it_made_of_a_day(backfills: Backfills, tmp_path: Path) -> None:
    settings = Settings(project=tmp_path, state=tmp_path / "state")

    def is_published() -> list[bool]:
        return [one.published for one in backfill_outcomes(settings, ["failed_logins"], "night")]

    backfills.note(DAY, attempt(End.FAILED, MADE))
    backfills.publish(DAY, [], published(MADE))
    assert is_published() == [True], "a second try that publishes leaves nothing to tell of the first"
    backfills.note(DAY, attempt(End.FAILED, MADE))
    assert is_published() == [False], "what counts from before was not published by the try that failed"
