"""Mails of failed runs, and the DAG in whose runs they and those about jobs leave."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException

from tocsin.model.names import MAILS_DAG
from tocsin.project.settings import load_settings
from tocsin.supervision.incidents import mail_outbox
from tocsin.supervision.incidents.mail_outbox import Mail, Outbox

_DOC = """
One run for each mail about a job or a failed run. The mail waits in the state folder until it has left; the
`supervisor` starts its run, and the same run again each minute as long as the mail server takes nothing, for a week.

Pause this DAG and these mails wait.
"""


_FAILED = """\
<p>A task of the run ended before it could say why: its process was killed, or could not start. The next run goes on
from what is there; nothing is lost.</p>
<p>Run: <code>{{ run_id | e }}</code>{% if ti is defined %}, task: <code>{{ ti.task_id | e }}</code></p>
<p><a href="{{ ti.log_url | e }}">The run in Airflow</a>{% endif %}</p>
"""


class RunMail(SmtpNotifier):
    """Puts the mail into the outbox; one that cannot be kept, because the disk is full, is sent at once."""

    def notify(self, context: Any) -> None:
        """See `SmtpNotifier.notify`."""
        mail = Mail(to=str(self.to), subject=str(self.subject), page=str(self.html_content))
        try:
            for to in mail.to.split(","):
                one = mail.model_copy(update={"to": to.strip()})
                Outbox(load_settings().state).put(_name(context, one.to), one)
        except OSError as error:
            self.log.warning("a mail cannot be kept, so it is sent at once: %s", error)
            super().notify(context)


class FailedRunMail(RunMail):
    """The mail of a failed run of which no task has written one. It is a callback of the DAG.

    Airflow calls those of a task in the process of the task, so a task whose process was killed, by the end of the
    scheduler or for want of memory, tells nothing. The scheduler asks for those of a DAG, through the metadata DB.
    """

    def __init__(self, owner: str) -> None:
        """Make the callback; `owner` is told."""
        super().__init__(to=owner, subject="[tocsin] {{ dag.dag_id }}: a run failed", html_content=_FAILED)

    def notify(self, context: Any) -> None:
        """See `SmtpNotifier.notify`."""
        if not Outbox(load_settings().state).has(_name_of_run(context)):
            super().notify(context)


def mails_dag() -> DAG:
    """The DAG."""
    with DAG(
        MAILS_DAG,
        description="Mails about jobs and failed runs, until they have left",
        doc_md=_DOC,
        tags={"platform"},
        schedule=None,
        catchup=False,
        dagrun_timeout=timedelta(minutes=5),
        is_paused_upon_creation=False,
        default_args={"owner": "tocsin", "retries": 0},
    ) as dag:
        PythonOperator(task_id="send", python_callable=send, execution_timeout=timedelta(seconds=45))
    return dag


def send(dag_run: Any) -> None:
    """Send the mail that waits under the id of this run; see `tocsin.supervision.incidents.mail_outbox.send`.

    Raises:
        AirflowSkipException: it has left already.
        TocsinError: the mail server takes it not now, or for good.
    """
    settings = load_settings()
    mail = mail_outbox.send(mail_outbox.Outbox(settings.state), dag_run.run_id, settings.smtp)
    if mail is None:
        raise AirflowSkipException("no such mail waits")
    print(f"{mail.to}: {mail.subject}")


def _name(context: Any, to: str) -> str:
    """Of the mail to `to` about this attempt at a task; of the form that Airflow takes as the id of a run."""
    ti = context.get("ti")
    attempt = (ti.task_id, str(ti.try_number), to) if ti else (to,)
    return f"{_name_of_run(context)}{_hash(*attempt)}"


def _name_of_run(context: Any) -> str:
    """As the names of all mails about this run begin."""
    dag, run = context["dag"].dag_id, context["dag_run"].run_id if "dag_run" in context else context["run_id"]
    return f"mail__{dag[:100]}__{_hash(dag, run)}__"


def _hash(*words: str) -> str:
    return hashlib.sha256("|".join(words).encode()).hexdigest()[:16]
