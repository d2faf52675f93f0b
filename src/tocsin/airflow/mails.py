"""The mails that failed runs of history and of backfills send, and the DAG in whose runs they leave."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowSkipException

from tocsin.names import MAILS_DAG
from tocsin.settings import load_settings
from tocsin.supervision import outbox
from tocsin.supervision.outbox import Mail, Outbox

_DOC = """
One run for each mail about a job or a failed run. The mail waits in the state folder until it has left; the
`supervisor` starts its run, and the same run again each minute as long as the mail server takes nothing, for a week.

Pause this DAG and these mails wait.
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


def mails_dag() -> DAG:
    """The DAG."""
    with DAG(
        MAILS_DAG,
        description="Mails of failed runs, until they have left",
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
    """Send the mail that waits under the id of this run; see `tocsin.supervision.outbox.send`.

    Raises:
        AirflowSkipException: it has left already.
        TocsinError: the mail server takes it not now, or for good.
    """
    settings = load_settings()
    mail = outbox.send(outbox.Outbox(settings.state), dag_run.run_id, settings.smtp)
    if mail is None:
        raise AirflowSkipException("no such mail waits")
    print(f"{mail.to}: {mail.subject}")


def _name(context: Any, to: str) -> str:
    """Of the mail to `to` about this attempt at a task; of the form that Airflow takes as the id of a run."""
    ti = context["ti"]
    what = (ti.dag_id, ti.run_id, ti.task_id, str(ti.try_number), to)
    return f"mail__{ti.dag_id[:100]}__{hashlib.sha256('|'.join(what).encode()).hexdigest()[:16]}"
