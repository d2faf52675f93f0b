"""The DAG that keeps Airflow's own DB and logs from growing without bound."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog
from airflow.configuration import AIRFLOW_HOME
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, CronTriggerTimetable
from airflow.sdk.configuration import conf

from tocsin.declare.settings import load_settings
from tocsin.supervise.runners.log_files import prune

_DOC = """
Removes records older than a week from Airflow's metadata DB (runs, task instances, asset events, audit log) and log
folder, once a day. The last run of each DAG stays. The notifier removes old findings and alerts.
"""
_KEPT = timedelta(days=7)
# Not `trigger`: the row of the watcher that wakes the supervisor is as old as the installation.
_TABLES = ("asset_event", "dag_run", "job", "log", "task_instance", "task_instance_history", "task_reschedule", "xcom")

log = structlog.get_logger()


def housekeeping_dag() -> DAG:
    """The DAG."""
    with DAG(
        "housekeeping",
        description="Removes old records from Airflow's DB and logs",
        doc_md=_DOC,
        tags={"platform"},
        schedule=CronTriggerTimetable("30 3 * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=2),
        is_paused_upon_creation=False,
        default_args={"owner": "tocsin", "retries": 2, "retry_delay": timedelta(minutes=5)},
    ) as dag:
        PythonOperator(task_id="prune_database", python_callable=_prune_database)
        PythonOperator(task_id="prune_logs", python_callable=_prune_logs)
    return dag


def _prune_database() -> None:
    """Tasks may not open the metadata DB themselves; Airflow's own command may, when it is told where that is."""
    settings = load_settings()
    address = settings.airflow.database(Path(AIRFLOW_HOME))
    before = (datetime.now(UTC) - _KEPT).isoformat()
    command = ["db", "clean", "--clean-before-timestamp", before, "--tables", ",".join(_TABLES), "--skip-archive"]
    subprocess.run(
        [sys.executable, "-m", "airflow", *command, "--yes"],
        env=os.environ | {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": address},
        check=True,
    )


def _prune_logs() -> None:
    folder = Path(conf.get("logging", "base_log_folder"))
    log.info("log files removed", count=prune(folder, time.time() - _KEPT.total_seconds()), folder=str(folder))
