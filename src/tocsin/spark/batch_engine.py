"""The engine that batches of Airflow share: `python -m tocsin.spark.batch_engine PROJECT`, which the first one starts.

It has the session of a batch, with its two task slots, and ends when none came for two minutes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tocsin.declare.settings import load_settings
from tocsin.job import exit_code_of
from tocsin.platform import logs
from tocsin.platform.process_exit import ExitCode
from tocsin.spark.batch_session import MASTER, POOL, batch_session, engine_settings
from tocsin.spark.engine.warm_engine import run_until_idle

_IDLE_SECONDS = 120.0


def _run(project: Path) -> int:
    logs.keep_bounded()
    for name in [name for name in os.environ if name.startswith(("PYSPARK_", "PYTHONPATH", "SPARK_"))]:
        del os.environ[name]  # they are of the spark-submit that has started the first batch, and lead into its JVM
    own = engine_settings(load_settings(project))
    run_until_idle(own, POOL, lambda job: batch_session(own, job, MASTER), _IDLE_SECONDS)
    return ExitCode.OK


if __name__ == "__main__":
    logs.configure(POOL)
    sys.exit(exit_code_of(lambda: _run(Path(sys.argv[1]))))
