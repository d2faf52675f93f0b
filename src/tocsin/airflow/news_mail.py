"""The mail that a failed run sends, and the note that it has left."""

from __future__ import annotations

from typing import Any

from airflow.providers.smtp.notifications.smtp import SmtpNotifier

from tocsin.settings import load_settings
from tocsin.supervision.news import note_told


class NewsMail(SmtpNotifier):
    """Mails, then notes that the news of the run are told; without recipients there is only the note.

    When the mail server takes nothing, no note is made, and the supervisor has the news told again. A crash between the
    server's "accepted" and the note sends the mail twice.
    """

    def notify(self, context: Any) -> None:
        """See `SmtpNotifier.notify`."""
        if self.to:
            super().notify(context)
        run = context["dag_run"]
        if (run.conf or {}).get("event"):
            note_told(load_settings().state, run.run_id)
