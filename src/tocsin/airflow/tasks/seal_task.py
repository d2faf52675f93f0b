"""The task that seals days of a source, and the mail when it fails."""

from __future__ import annotations

from typing import Any

from tocsin.airflow.tasks.lost_days import LostDaysMail
from tocsin.airflow.tasks.program import GatedProgram
from tocsin.airflow.tasks.run_days import DayOutcome, sealed
from tocsin.model.source import Source
from tocsin.project.settings import load_settings


class SealMail(LostDaysMail):
    """Of the days of sources."""

    what = "history"
    then = "A day that is refused is sealed again when more lands for it, one that failed in the next night."

    def outcomes(self, run_id: str) -> list[DayOutcome]:
        """See `LostDaysMail.outcomes`."""
        return [one for source in self.owners for one in sealed(load_settings(), source, run_id)]


class Seal(GatedProgram):
    """Runs `spark_jobs/seal.py` over all days that need it. What the gate refuses is not sealed again."""

    def __init__(self, *, source: Source, **options: Any) -> None:
        """Make the task.

        Args:
            source: whose days.
            options: of any operator.
        """
        mail = SealMail({source.name: source.owner})
        arguments = [source.name, "--run-id={{ run_id }}"]
        super().__init__(program="seal", arguments=arguments, retries=1, on_failure_callback=mail, **options)
        self.source = source.name

    def outcomes(self, run_id: str) -> list[DayOutcome]:
        """See `GatedProgram.outcomes`."""
        return sealed(load_settings(), self.source, run_id)
