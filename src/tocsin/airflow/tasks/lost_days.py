"""Mails of a run that has not published all its days: which, why, and where the report is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tocsin.airflow.addresses import address_of
from tocsin.airflow.dags.mail_dag import failure, tell
from tocsin.airflow.tasks.run_days import DayOutcome
from tocsin.alerts.notify.mail.compose import Notice

_KEPT = "What was published before goes on to count for these days. Other days are not affected."


class LostDaysMail(ABC):
    """Tells each owner which of the own days are not published; all owners when no day was come to."""

    what: str
    """What the run does, as the subject begins."""
    then: str
    """What will come of the days by itself, one sentence."""

    def __init__(self, owners: Mapping[str, str]) -> None:
        """Make the callback.

        Args:
            owners: detectors or sources, and the address of whose each is.
        """
        self.owners = owners

    @abstractmethod
    def outcomes(self, run_id: str) -> list[DayOutcome]:
        """List the outcomes of the days of the run."""

    def __call__(self, context: Any) -> None:
        """Let them leave; one that can neither be kept nor leave is in the log of the task, and keeps no other back."""
        lost = [one for one in self.outcomes(context["dag_run"].run_id) if not one.published]
        told = {self.owners[one.subject] for one in lost} or set(self.owners.values())
        failed = None
        for owner in sorted(told):
            days = [one for one in lost if self.owners[one.subject] == owner]
            try:
                tell(context, owner, self._notice(context, days))
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed

    def _notice(self, context: Any, days: Sequence[DayOutcome]) -> Notice:
        """Describe the lost `days` of one owner; that the task failed if there are none."""
        notice = failure(context)
        if not days:
            return notice
        subjects = ", ".join(dict.fromkeys(one.subject for one in days))
        return replace(
            notice,
            subject=f"[tocsin] {self.what} of {subjects}: {len(days)} day{'s' * (len(days) > 1)} not published",
            paragraphs=(_KEPT, self.then),
            days=[(_cells(one), address_of(one.report) if one.report else "") for one in days],
        )


def _cells(one: DayOutcome) -> tuple[str, ...]:
    return one.subject, one.day.isoformat(), " ".join(one.said.split())
