"""Run the tasks of the jobs' DAGs: restart a job, describe it, or tell its owner news by failing."""

from __future__ import annotations

from typing import Any

import structlog
from airflow.sdk.exceptions import AirflowFailException

from tocsin.declare.settings import load_settings
from tocsin.supervise.installed_jobs import InstalledJobs

RESTART, STATUS = "restart", "status"
_LINES = 50

log = structlog.get_logger()


def act(jobs: tuple[str, ...], **context: Any) -> None:
    """Do what the run asks for.

    Args:
        jobs: those that the DAG handles; the param `job` names one of them, the first when there is no such param.
        context: of the task.

    Raises:
        AirflowFailException: the run carries news; its failure is what tells them.
        TransientError, OSError: see `InstalledJobs.restart`.
    """
    event = (context["dag_run"].conf or {}).get("event")
    if event:
        raise AirflowFailException(f"{event['job']}: {event['condition']}: {event['reason']}")
    params = context["params"]
    job, settings = params.get("job", jobs[0]), load_settings()
    installation = InstalledJobs(settings)
    if params["action"] == RESTART:
        ran = installation.restart(job)
        log.info("restart requested" if ran else "start requested, back-off cleared", job=job)
    else:
        _describe(installation, job)


def _describe(installation: InstalledJobs, job: str) -> None:
    """Log the status of `job` and the end of its log."""
    status = installation.status(job)
    log.info("health", job=job, standing=str(status.standing), health=status.health, reason=status.reason)
    log.info("status", status=status.model_dump(mode="json"))
    for line in installation.runner.logs(job, _LINES):
        log.info(line)
