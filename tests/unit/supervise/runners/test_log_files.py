import os
from pathlib import Path

from tocsin.supervise.runners.log_files import excerpt, prune, rotate, tail


def test_a_long_log_is_moved_on_and_its_writer_goes_on_at_the_beginning(tmp_path: Path) -> None:
    log = tmp_path / "kafka.log"
    with log.open("ab") as writer:
        for number in range(4):
            writer.write(b"%d" % number * 100)
            writer.flush()
            assert rotate(log, limit_bytes=99, kept=2)
        writer.write(b"new")
        writer.flush()
    assert log.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kafka.log", "kafka.log.1", "kafka.log.2"]
    assert (tmp_path / "kafka.log.1").read_bytes() == b"3" * 100
    assert (tmp_path / "kafka.log.2").read_bytes() == b"2" * 100


def test_a_short_log_and_none_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("x" * 99)
    assert not rotate(tmp_path / "short", limit_bytes=99)
    assert not rotate(tmp_path / "none", limit_bytes=99)
    assert [path.name for path in tmp_path.iterdir()] == ["short"]


def test_the_tail_is_the_last_lines_whatever_bytes_they_are(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"one\ntwo\nth\xffree\n")
    assert tail(tmp_path / "log", 2) == ["two", "th\ufffdree"]
    assert tail(tmp_path / "none", 2) == []


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


def test_of_a_gigabyte_only_the_end_is_kept(tmp_path: Path) -> None:
    log, end = tmp_path / "job.log", "the last line\n" * 3
    for _ in range(5):
        with log.open("wb") as file:
            file.seek(1 << 30)  # a hole: it takes no room here
            file.write(end.encode())
        assert rotate(log, limit_bytes=1_000_000)
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["job.log", "job.log.1", "job.log.2", "job.log.3"]
    assert sum(path.stat().st_size for path in kept) <= 3 * 2_000_000
    assert (tmp_path / "job.log.1").read_bytes().endswith(end.encode())


PLACE = 'File "/srv/shop/detectors/slow_routes.py", line 21'
TRACE = [
    "org.apache.spark.api.python.PythonException: Traceback (most recent call last):",
    '  File "/venv/lib/python3.11/site-packages/pyspark/worker.py", line 3478, in main',
    "    process()",
    f"  {PLACE}, in step",
    "    share = slow / total",
    "            ~~~~~^~~~~~~",
    "ZeroDivisionError: division by zero",
]
FRAMES = [f"\tat org.apache.spark.scheduler.Task{number}.run(Task.scala:{number})" for number in range(60)]


def test_the_authors_lines_come_first_and_frames_of_libraries_are_counted() -> None:
    end = "Caused by: java.lang.RuntimeException: stage failed"
    lines = [*TRACE, *FRAMES, end, *FRAMES, "\t... 12 more", "time=2026-11-26T10:00:00Z level=error event=ended"]
    shown = excerpt(lines)
    assert shown[:4] == [PLACE, "    share = slow / total", "ZeroDivisionError: division by zero", ""]
    assert shown[-4:] == [
        "    (60 frames of libraries)", end, "    (61 frames of libraries)",
        "time=2026-11-26T10:00:00Z level=error event=ended",
    ]  # fmt: skip


def test_a_trace_within_one_event_of_the_log_reads_like_one_of_several_lines() -> None:
    escaped = "\\n".join([*TRACE, *FRAMES]).replace('"', '\\"').replace("\t", "\\t")
    (event, *others) = excerpt([f'time=2026-11-26T10:00:00Z level=error exception="{escaped}"'])[4:]
    assert event.startswith("time=2026-11-26T10:00:00Z")
    assert others[-1] == "    (60 frames of libraries)"


def test_a_log_without_a_trace_stays_its_last_lines() -> None:
    lines = [f"line {number} " + "x" * 1000 for number in range(50)]
    assert [line[:8].strip() for line in excerpt(lines)] == [f"line {number}" for number in range(30, 50)]
    assert max(map(len, excerpt(lines))) == 400
