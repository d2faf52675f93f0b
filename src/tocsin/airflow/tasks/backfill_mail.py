"""The mails of a backfill that has failed: one for each owner, of that owner's detectors."""

from __future__ import annotations

from tocsin.airflow.tasks.lost_days import LostDaysMail
from tocsin.airflow.tasks.run_days import DayOutcome, outcomes
from tocsin.project.settings import load_settings


class BackfillMail(LostDaysMail):
    """Of the days of detectors."""

    what = "backfill"
    then = "A day that is held is run again when its events or its detector change, one that failed in the next night."

    def outcomes(self, run_id: str) -> list[DayOutcome]:
        """See `LostDaysMail.outcomes`."""
        return outcomes(load_settings(), self.owners, run_id)
