"""`spark_jobs/submit.sh`: a batch sees nothing of the Airflow task that starts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tocsin.setup.paths import here

JOBS = here().root / "spark_jobs"


def test_nothing_of_airflow_reaches_a_batch(tmp_path: Path) -> None:
    script = tmp_path / "spark_jobs" / "submit.sh"
    script.parent.mkdir()
    script.write_bytes((JOBS / "submit.sh").read_bytes())
    program = tmp_path / ".venv" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.with_name("python").symlink_to(sys.executable)
    (tmp_path / "src").symlink_to(here().root / "src")
    program.write_text('#!/bin/sh\necho "$@"\nenv\n')
    for path in (script, program):
        path.chmod(0o755)
    secrets = {"AIRFLOW__CORE__FERNET_KEY": "s", "AIRFLOW_CONN_X": "s", "_AIRFLOW_Y": "s", "PYTHONPATH": "s"}
    kept = {"PATH": "/usr/bin:/bin", "TOCSIN_STATE": "/state", "AIR": "a\nAIRFLOW_IN_TEXT=b"}
    done = subprocess.run([script, "a", "b c"], env=secrets | kept, capture_output=True, text=True, check=True)
    words, *variables = done.stdout.splitlines()
    assert words == "a b c"
    assert {"TOCSIN_STATE=/state", "AIR=a"} <= set(variables)
    assert not [line for line in variables if line.split("=")[0] in secrets]
