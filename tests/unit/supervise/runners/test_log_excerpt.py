"""Lines of a log in a mail, chosen from what a job writes when its function raises inside Spark."""

from __future__ import annotations

from tocsin.supervise.runners.log_files import excerpt

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
