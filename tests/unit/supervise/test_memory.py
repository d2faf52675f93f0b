from pathlib import Path

from tocsin.supervise.job_states import Condition, History, Past, read_history, write_history

HISTORY = History(
    jobs={
        "notifier": Past(
            spec="v1",
            started_at=12.5,
            expected=True,
            failures=(1.0, 2.0),
            retry_at=9.0,
            condition=Condition.CRASH_LOOP,
            reason="failed with exit code 1",
            asked={77: 3.0},
        )
    },
    heavy_start_at=4.0,
)


def test_all_of_it_is_read_back(tmp_path: Path) -> None:
    write_history(tmp_path / "new" / "jobs.json", HISTORY)
    assert read_history(tmp_path / "new" / "jobs.json") == HISTORY
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["jobs.json"]


def test_none_and_a_broken_one_are_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"jobs": {"notifier": {"spec": ')
    assert read_history(tmp_path / "broken.json") == History()
    assert read_history(tmp_path / "none.json") == History()
