"""One DAG for each source: land each hour, seal and publish each night."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.python import PythonOperator, ShortCircuitOperator
from airflow.sdk import DAG, CronTriggerTimetable

from tocsin.airflow.component import BACKFILL_POOL
from tocsin.airflow.news_mail import NewsMail
from tocsin.catalog import read_catalog
from tocsin.names import history_dag
from tocsin.provision.paths import here
from tocsin.settings import load_settings
from tocsin.source import Source

WARNED, REFUSED, MISCONFIGURED = 10, 20, 2
"""Exit codes of a seal, besides 0 and those where a retry may help; see `spark_jobs/seal.py`."""

_NIGHT = 2
_LOGGING = here().root / "src" / "tocsin" / "spark" / "log4j2.properties"
_CODE = re.compile(r"Error code is: (\d+)")
_OURS = re.compile(r"_{0,2}AIRFLOW|PYTHONPATH$|PYTHONHOME$")
_DOC = """
Each hour it lands what has come to the events topic since the hour before. In the hour after 02:00 UTC, and in a run
that somebody triggers, it then seals the days that need it, judges each and publishes it.

A day with a critical verdict is not published, and that fails the run: what was published of it goes on to count. A
warning is in the log and on the day's report. `tocsin history list` shows every day.
"""
_SUBJECT = "[tocsin] {{ dag.dag_id }}: {{ ti.task_id }} failed"
_PAGE = """\
<p>{{ (exception or "The task failed") | string | e }}</p>
<p><a href="{{ ti.log_url | e }}">The run in Airflow</a></p>
"""


def history_dags() -> list[DAG]:
    """The DAG of each source that can be read."""
    return [_dag(source) for source in read_catalog(load_settings().project).sources.values()]


class Seal(SparkSubmitOperator):
    """Runs `spark_jobs/seal.py`: a warning is no failure, and what a retry does not mend is not retried."""

    def execute(self, context: Any) -> None:
        """See `SparkSubmitOperator.execute`."""
        try:
            super().execute(context)
        except AirflowException as error:
            found = _CODE.search(str(error))
            code = int(found[1]) if found else None
            if code == WARNED:
                self.log.warning("a day was published with a warning; its report says which")
                return
            if code in (REFUSED, MISCONFIGURED):
                raise AirflowFailException(str(error)) from error
            raise


def _dag(source: Source) -> DAG:
    mail = NewsMail(to=source.owner, subject=_SUBJECT, html_content=_PAGE)
    jobs = here().root / "spark_jobs"
    with DAG(
        history_dag(source.name),
        description=f"History of {source.title}",
        doc_md=_DOC,
        tags={"history", source.name},
        schedule=CronTriggerTimetable("10 * * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        default_args={"owner": source.owner, "on_failure_callback": mail, "retry_delay": timedelta(minutes=5)},
    ) as dag:
        land = PythonOperator(
            task_id="land",
            python_callable=_land,
            op_args=[source.name],
            retries=2,
            execution_timeout=timedelta(minutes=50),
        )
        night = ShortCircuitOperator(task_id="is_night", python_callable=_is_night)
        seal = Seal(
            task_id="seal",
            pool=BACKFILL_POOL,
            retries=1,
            execution_timeout=timedelta(hours=6),
            # An address would be looked for in the connection; a path starts the Spark of the jobs' environment.
            spark_binary=str(jobs / "submit.sh"),
            application=str(jobs / "seal.py"),
            application_args=[source.name],
            name=f"seal {source.name}",
            jars=",".join(map(str, sorted(here().jars("spark").glob("*.jar")))),
            driver_memory="1g",
            conf={"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"},
        )
        land >> night >> seal
    return dag


def _land(source: str) -> None:
    """Land, in the environment of the jobs, which must find nothing of Airflow's own."""
    kept = {name: value for name, value in os.environ.items() if not _OURS.match(name)}
    command = [str(here().venv / "bin" / "tocsin"), "history", "land", "--source", source]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    if done.returncode == MISCONFIGURED:
        raise AirflowFailException(done.stderr)
    if done.returncode:
        raise AirflowException(done.stderr)


def _is_night(dag_run: Any) -> bool:
    """Whether this run is to seal: the one of the night, or one that somebody has triggered."""
    moment = dag_run.logical_date or dag_run.run_after or datetime.now(UTC)
    return dag_run.run_type == "manual" or moment.hour == _NIGHT
