import subprocess
import sys

SCRIPT = """
import logging, warnings, structlog
from tocsin.runtime.logs import configure
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


def test_every_line_has_time_level_and_job_and_events_stay_in_one_line() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    assert done.stdout == ""
    assert len(lines) == 5
    assert all(line.startswith("time=2") and " job=ingest:logins " in line for line in lines)
    assert 'level=info job=ingest:logins event="query started" partitions=2' in lines[0]
    assert 'level=warning job=ingest:logins event="careful now"' in lines[1]
    assert "old form" in lines[2]
    assert r"line=two\nlines" in lines[3]
    assert "ValueError: no such thing" in lines[4]


PY4J = """
import logging
from tocsin.runtime.logs import configure
configure("ingest:logins")
for level, said in ((logging.INFO, "tries again"), (logging.WARNING, "gives up")):
    record = logging.LogRecord("root", level, "/x/py4j/java_gateway.py", 1, said, None, None)
    logging.getLogger().handle(record)
"""


def test_what_py4j_tries_once_more_is_not_told() -> None:
    done = subprocess.run([sys.executable, "-c", PY4J], capture_output=True, text=True, check=True)
    assert "gives up" in done.stderr
    assert "tries again" not in done.stderr
