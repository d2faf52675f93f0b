"""Mails of a run that has not published all its days: which, why, and where the report is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from tocsin.airflow.addresses import address_of
from tocsin.airflow.dags.mail_dag import RunMail
from tocsin.airflow.tasks.run_days import DayOutcome

_SUBJECT = """\
[tocsin] {% if days %}{{ what }} of {{ days | map(attribute="subject") | unique | join(", ") }}: \
{{ days | length }} day{{ "s" if days | length > 1 }} not published{% else %}\
{{ dag.dag_id }}: {{ ti.task_id }} failed{% endif %}"""
_PAGE = """\
{% if days -%}
<p>What was published before goes on to count for these days. Other days are not affected.</p>
<table>
{% for one in days -%}
<tr><td>{{ one.subject | e }}</td><td>{{ one.day }}</td><td>{{ one.said | e }}</td>
<td>{% if one.report %}<a href="{{ address_of(one.report) | e }}">report</a>{% endif %}</td></tr>
{% endfor -%}
</table>
<p>{{ then }}</p>
{%- endif %}
<pre>{{ (exception or "The task failed") | string | e }}</pre>
<p><a href="{{ ti.log_url | e }}">The run in Airflow</a></p>
"""


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
        """What became of the days of the run."""

    def __call__(self, context: Any) -> None:
        """Let them leave; one that can neither be kept nor leave is in the log of the task, and keeps no other back."""
        lost = [one for one in self.outcomes(context["dag_run"].run_id) if not one.published]
        told = {self.owners[one.subject] for one in lost} or set(self.owners.values())
        failed = None
        for owner in sorted(told):
            days = [one for one in lost if self.owners[one.subject] == owner]
            own = {"days": days, "what": self.what, "then": self.then, "address_of": address_of}
            try:
                RunMail(to=owner, subject=_SUBJECT, html_content=_PAGE)({**context, **own})
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
