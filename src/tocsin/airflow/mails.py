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
from tocsin.supervision.outbox import Mail, Outbox

_DOC = """
One run for each mail that a failed run of `history__<source>` or `backfill__<name>` sends. The mail waits in the state
folder until it has left; the `supervisor` starts its run, and the same run again each minute as long as the mail server
takes nothing, for a week.

Pause this DAG and these mails wait.
"""


class RunMail(SmtpNotifier):
    """Puts the mail into the outbox; one that cannot be kept, because the disk is full, is sent at once."""

    def notify(self, context: Any) -> None:
        """See `SmtpNotifier.notify`."""
        mail = Mail(to=str(self.to), subject=str(self.subject), page=str(self.html_content))
        try:
            Outbox(load_settings().state).put(_name(context, mail.to), mail)
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
    """Send the mail that waits under the id of this run; a crash between "accepted" and the end of this sends it twice.

    Raises:
        AirflowSkipException: it has left already.
        OSError: the mail server takes nothing now, also as an SMTPException; the mail waits on.
    """
    outbox, name = Outbox(load_settings().state), dag_run.run_id
    mail = outbox.read(name)
    if mail is None:
        raise AirflowSkipException("no such mail waits")
    SmtpNotifier(to=mail.to, subject=mail.subject, html_content=mail.page).notify({})
    outbox.remove(name)
    print(f"{mail.to}: {mail.subject}")


def _name(context: Any, to: str) -> str:
    """Of the mail to `to` about this attempt at a task; of the form that Airflow takes as the id of a run."""
    ti = context["ti"]
    what = (ti.dag_id, ti.run_id, ti.task_id, str(ti.try_number), to)
    return f"mail__{ti.dag_id[:100]}__{hashlib.sha256('|'.join(what).encode()).hexdigest()[:16]}"
