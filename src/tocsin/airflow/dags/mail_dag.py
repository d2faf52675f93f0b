"""Mails of failed runs, and the DAG that sends messages while the notifier cannot."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from tocsin.airflow.addresses import address_of
from tocsin.alerts.notify.channel import SENDING_SECONDS
from tocsin.alerts.notify.mail.compose import Notice
from tocsin.alerts.notify.notices import PATIENCE_SECONDS, NoticeFiles, list_overdue, operators, post, send_overdue
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.names import MAILS_DAG
from tocsin.declare.settings import load_settings
from tocsin.history.seal_outcomes import DayOutcome

log = structlog.get_logger()

_DOC = """
The notifier sends the messages about jobs and failed runs. While it, or the alerts DB, is down, `supervisor` starts the
run of this DAG each minute; it sends those that have waited for a minute.
"""
_KILLED = (
    "A task of the run ended without giving a reason: its process was killed, or could not start. "
    "The next run resumes from there; nothing is lost."
)
_TYPED = 3  # a mail names the commands of so many days, the newest
_KEPT = "The versions published before still count for these days. Other days are not affected."


class RunMail:
    """A callback of Airflow's that mails of a failed task."""

    def __init__(self, to: str, what: str = "", **more: Any) -> None:
        """`what` ends the subject, by default that the task failed; `more` is passed to the `Notice`."""
        self.to, self.what, self.more = to, what, more

    def __call__(self, context: Any) -> None:
        """Let the mail leave, see `mail`, unless it would repeat one."""
        if isinstance(context.get("exception"), DaysRefused):
            NoticeFiles(load_settings().state).remove(_name_of_run(context))
        else:
            mail(context, self.to, failure(context, self.what, **self.more))


class DaysRefused(AirflowFailException):
    """Raised while a gate refuses days, of which the owner was notified when it refused them."""


class FailedRunMail:
    """Mails that a run failed, unless one of its tasks has written a mail. It is a callback of the DAG.

    Airflow calls those of a task in the process of the task, so a task that was killed, by the end of the scheduler or
    for want of memory, writes none. The scheduler requests those of a DAG, through the metadata DB.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner

    def __call__(self, context: Any) -> None:
        """Let the mail leave, unless a task has written one about this run."""
        if not NoticeFiles(load_settings().state).has(_name_of_run(context)):
            paragraphs = (_KILLED, f"Run: {_run_of(context)}")
            mail(context, self.owner, failure(context, "a run failed", paragraphs=paragraphs, output=()))


class LostDaysMail:
    """Mails each owner which of their days a run has not published; all owners if the run reached no day."""

    def __init__(
        self, owners: Mapping[str, str], outcomes: Callable[[str], list[DayOutcome]], what: str, then: str
    ) -> None:
        """`owners` has the address of the owner by detector or source; `outcomes` takes the id of a run.

        `what` the run does begins the subject. `then` is a sentence on what happens to the days without further action.
        """
        self.owners, self.outcomes, self.what, self.then = owners, outcomes, what, then

    def __call__(self, context: Any) -> None:
        """Let them leave. One that can neither be stored nor leave is logged by the task, and holds no other back."""
        try:
            outcomes = self.outcomes(context["dag_run"].run_id)
        except (TocsinError, OSError) as error:
            log.warning("what became of the days cannot be read", error=str(error))
            outcomes = []
        lost = [outcome for outcome in outcomes if not outcome.published]
        owners = {self.owners[outcome.subject] for outcome in lost} or set(self.owners.values())
        failed = None
        for owner in sorted(owners):
            days = [outcome for outcome in lost if self.owners[outcome.subject] == owner]
            try:
                mail(context, owner, self._notice(context, days))
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _notice(self, context: Any, days: Sequence[DayOutcome]) -> Notice:
        """Describe the lost `days` of one owner; that the task failed if there are none."""
        notice = failure(context)
        if not days:
            return notice
        subjects = ", ".join(dict.fromkeys(outcome.subject for outcome in days))
        return replace(
            notice,
            subject=f"[tocsin] {self.what} of {subjects}: {len(days)} day{'s' * (len(days) > 1)} not published",
            paragraphs=(_KEPT, self.then),
            commands=[command for outcome in days[-_TYPED:] for command in outcome.commands],
            days=[
                (
                    (outcome.subject, str(outcome.day), " ".join(outcome.said.split())),
                    address_of(outcome.report) if outcome.report else "",
                )
                for outcome in days
            ],
        )


def failure(context: Any, what: str = "", **more: Any) -> Notice:
    """Describe a failed task or run; `what` ends the subject. Links in `more`, of the `Notice`, follow the run's."""
    ti = context.get("ti")
    run = [("The run in Airflow", ti.log_url)] if ti else []
    error = str(context.get("exception") or "The task failed").splitlines()
    own: dict[str, Any] = {"output": error, "output_of": "The error of the task"}
    own |= more | {"links": (*run, *more.get("links", ()))}
    return Notice(subject=f"[tocsin] {context['dag'].dag_id}: {what or f'{ti.task_id} failed'}", **own)


def mail(context: Any, to: str, notice: Notice) -> None:
    """Let the message to those in `to`, or to operators, leave; where no file can be written, it is sent at once.

    Raises:
        TransientError: it can neither be stored nor leave.
    """
    settings = load_settings()
    people = [address for address in map(str.strip, to.split(",")) if address]
    people = people or operators(read_catalog(settings.project), settings)
    if post(notice, _name(context, to), people, settings) < set(people):
        raise TransientError(f"{to}: the message could neither be stored nor sent; the log says why")


def mails_dag() -> DAG:
    """The DAG."""
    with DAG(
        MAILS_DAG,
        description="Sends messages that the notifier has not taken",
        doc_md=_DOC,
        tags={"platform"},
        schedule=None,
        catchup=False,
        # A server may take its time (`SENDING_SECONDS`); then it must not take the places of other tasks.
        max_active_runs=1,
        dagrun_timeout=timedelta(minutes=70),
        is_paused_upon_creation=False,
        default_args={"owner": "tocsin", "retries": 0},
    ) as dag:
        PythonOperator(task_id="send", python_callable=send, execution_timeout=timedelta(seconds=SENDING_SECONDS))
    return dag


def send(patience: float = PATIENCE_SECONDS) -> None:
    """Send the messages that the notifier has not taken within `patience` seconds.

    Raises:
        TransientError: one could not leave, or another process is at it; the log says why.
    """
    settings = load_settings()
    if not send_overdue(settings, patience):
        raise TransientError(f"{len(list_overdue(settings, patience))} messages wait on; see the log above")


def _name(context: Any, to: str) -> str:
    """Name the mail to `to` about this attempt at a task, in the form that Airflow takes as the id of a run."""
    ti = context.get("ti")
    attempt = (ti.task_id, str(ti.try_number), to) if ti else (to,)
    return f"{_name_of_run(context)}{_hash(*attempt)}"


def _name_of_run(context: Any) -> str:
    """Begin the names of all mails about this run."""
    dag = context["dag"].dag_id
    return f"mail__{dag[:100]}__{_hash(dag, _run_of(context))}__"


def _run_of(context: Any) -> str:
    return str(context["dag_run"].run_id if "dag_run" in context else context["run_id"])


def _hash(*words: str) -> str:
    return hashlib.sha256("|".join(words).encode()).hexdigest()[:16]
