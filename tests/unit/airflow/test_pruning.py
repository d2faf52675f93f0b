import os
from pathlib import Path

from tocsin.airflow.pruning import prune


def test_old_files_go_with_the_folders_that_they_leave_empty(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for name, written in (("a/old.log", 100), ("a/b/older.log", 50), ("c/old.log", 100), ("c/new.log", 300)):
        path = logs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        os.utime(path, (written, written))
    assert prune(logs, 200) == 3
    assert [str(path.relative_to(logs)) for path in sorted(logs.rglob("*"))] == ["c", "c/new.log"]


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    os.utime(kept / "file", (1, 1))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "latest").symlink_to(kept)
    prune(tmp_path / "logs", 200)
    assert (kept / "file").exists()


def test_an_empty_log_folder_stays_and_a_missing_one_is_no_error(tmp_path: Path) -> None:
    assert prune(tmp_path, 1e12) == 0
    assert tmp_path.exists()
    assert prune(tmp_path / "missing", 1e12) == 0
