"""The engine that batches of Airflow share: `python -m tocsin.spark.batch_engine PROJECT`, which the first one starts.

It has the session of a batch, with its two task slots, and ends when none came for two minutes. `spark_jobs/submit.sh`
lets it run batches without a start of Python or of spark-submit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from tocsin.declare.blocks.spark_settings import LOCAL
from tocsin.declare.model.job_kinds import BATCHES
from tocsin.declare.settings import Settings, load_settings
from tocsin.job import exit_code_of
from tocsin.platform import logs
from tocsin.platform.process_exit import ExitCode
from tocsin.setup.paths import here
from tocsin.spark.batch_session import MASTER, POOL, batch_session, engine_settings
from tocsin.spark.engine.warm_engine import Programs, run_until_idle

_IDLE_SECONDS = 120.0


def _run(project: Path) -> int:
    for name in [name for name in os.environ if name.startswith(("PYSPARK_", "PYTHONPATH", "SPARK_"))]:
        del os.environ[name]  # they are of the spark-submit that has started the first batch, and lead into its JVM
    own = engine_settings(load_settings(project))

    def start(job: str) -> SparkSession:
        logs.configure(POOL)  # not before: programs have logs of their own
        logs.keep_bounded()
        return batch_session(own, job, MASTER)

    # Great Expectations alone takes two seconds of CPU, and is imported where a day is judged.
    modules = [*(kind.run for kind in BATCHES.values()), "great_expectations"]
    programs = Programs(modules, lambda command: _program(own, command))
    run_until_idle(own, POOL, start, _IDLE_SECONDS, programs)
    return ExitCode.OK


def _program(own: Settings, command: Sequence[str]) -> Sequence[str]:
    """Find the program of `spark_jobs` in a command of spark-submit; none if this engine is not for it."""
    settings, jobs = load_settings(), here().root / "spark_jobs"
    shares = settings.engine.enabled and settings.spark.master == LOCAL and MASTER in command
    if not shares or engine_settings(settings).state != own.state:
        return ()
    return command[next(at for at, word in enumerate(command) if Path(word).parent == jobs) :]


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: _run(Path(sys.argv[1]))))
