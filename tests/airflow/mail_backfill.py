"""A program for Airflow's environment: what mails a failed backfill sends, as JSON.

`mail_backfill.py RUN OWNERS [REFUSED]`: OWNERS is a JSON object of detector to address; no mail leaves for REFUSED.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG

from tocsin.airflow.backfill_mail import BackfillMail

SENT: list[dict[str, Any]] = []


def take(self: Any, context: Any) -> None:
    """Instead of a mail server."""
    del context
    if [self.to] == sys.argv[3:]:
        raise OSError("refused")
    SENT.append({"to": self.to, "subject": self.subject, "html": self.html_content})


def main() -> None:
    SmtpNotifier.notify = take
    context = {
        "dag": DAG("history__logins", schedule=None),
        "dag_run": SimpleNamespace(run_id=sys.argv[1]),
        "ti": SimpleNamespace(log_url="http://airflow/run", task_id="catch_up"),
        "exception": RuntimeError("Error code is: <2>"),
    }
    failed = ""
    try:
        BackfillMail(json.loads(sys.argv[2]))(context)
    except OSError as error:
        failed = str(error)
    print(json.dumps({"sent": SENT, "failed": failed}))


if __name__ == "__main__":
    main()
