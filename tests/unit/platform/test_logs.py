import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, warnings, structlog
from tocsin.platform.logs import configure
configure("ingest:logins")
structlog.get_logger().info("query started", partitions=2)
structlog.get_logger().debug("too fine")
logging.getLogger("some.library").warning("careful %s", "now")
warnings.warn("old form")
structlog.get_logger().info("from outside", line="two\\nlines")
try:
    raise ValueError("no such thing")
except ValueError:
    structlog.get_logger().exception("failed")
"""


def output_of(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)


def test_every_line_has_time_level_and_job_and_events_stay_in_one_line() -> None:
    done = output_of(SCRIPT)
    lines = done.stderr.splitlines()
    assert done.stdout == ""
    assert len(lines) == 5
    assert all(line.startswith("time=2") and " job=ingest:logins " in line for line in lines)
    assert 'level=info job=ingest:logins event="query started" partitions=2' in lines[0]
    assert 'level=warning job=ingest:logins event="careful now"' in lines[1]
    assert "old form" in lines[2]
    assert r"line=two\nlines" in lines[3]
    assert "ValueError: no such thing" in lines[4]


OF_LIBRARIES = """
import logging, httpx
from tocsin.platform.logs import configure
configure("notifier")
for level, said in ((logging.INFO, "tries again"), (logging.WARNING, "gives up")):
    record = logging.LogRecord("root", level, "/x/py4j/java_gateway.py", 1, said, None, None)
    logging.getLogger().handle(record)
with httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as client:
    client.post("https://hooks.example.com/s3cret")
"""


def test_what_py4j_tries_once_more_and_the_address_of_a_receiver_are_not_told() -> None:
    told = output_of(OF_LIBRARIES).stderr
    assert "gives up" in told
    assert "tries again" not in told
    assert "s3cret" not in told


def test_as_json_each_line_is_an_object_with_the_run_of_its_process() -> None:
    runs = []
    for _ in range(2):
        done = output_of(SCRIPT, TOCSIN_LOGS__FORMAT="json")
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        assert len(lines) == 5
        assert {line["job"] for line in lines} == {"ingest:logins"}
        assert [line["level"] for line in lines] == ["info", "warning", "warning", "info", "error"]
        assert (lines[0]["event"], lines[0]["partitions"]) == ("query started", 2)
        assert lines[3]["line"] == "two\nlines"
        assert "ValueError: no such thing" in lines[4]["exception"]
        assert all(line["time"].endswith("Z") for line in lines)
        (run,) = {line["run"] for line in lines}
        runs.append(run)
    assert runs[0] != runs[1]


def test_a_fault_in_the_settings_leaves_the_lines_readable() -> None:
    assert output_of(SCRIPT, TOCSIN_LOGS__FORMAT="xml").stderr.startswith("time=2")


def test_what_is_printed_without_end_is_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = """
import sys, time
from tocsin.platform import logs
logs.configure("job")
logs.keep_bounded(1_000_000)
most = 0
for _ in range(400):
    sys.stderr.write("x" * 50_000)
    sys.stderr.flush()
    time.sleep(0.001)
print("the last word", file=sys.stderr)
time.sleep(0.3)
"""
    with log.open("ab") as out:
        subprocess.run([sys.executable, "-c", program], stderr=out, check=True)
    assert log.stat().st_size < 12_000_000, "20 MB were printed"
    assert "log cut, too much was printed at once" in log.read_text()
