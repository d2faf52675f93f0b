"""The mails of a backfill that has failed: one for each owner, of that owner's detectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.providers.smtp.notifications.smtp import SmtpNotifier

from tocsin.airflow.addresses import address_of
from tocsin.airflow.days import outcomes
from tocsin.settings import load_settings

_SUBJECT = """\
[tocsin] {% if days %}backfill of {{ days | map(attribute="detector") | unique | join(", ") }}: \
{{ days | length }} day{{ "s" if days | length > 1 }} not published{% else %}\
{{ dag.dag_id }}: {{ ti.task_id }} failed{% endif %}"""
_PAGE = """\
{% if days -%}
<p>What was published before goes on to count for these days. All others are published.</p>
<table>
{% for one in days -%}
<tr><td>{{ one.detector | e }}</td><td>{{ one.day }}</td><td>{{ one.said | e }}</td>
<td>{% if one.report %}<a href="{{ address_of(one.report) | e }}">report</a>{% endif %}</td></tr>
{% endfor -%}
</table>
<p>A day that is held is run again when its events or the detector change, a day that failed in the next night.</p>
{%- else -%}
<p>{{ (exception or "The task failed") | string | e }}</p>
{%- endif %}
<p><a href="{{ ti.log_url | e }}">The run in Airflow</a></p>
"""


class BackfillMail:
    """Tells the owner of each detector of which a day is not published; all owners when no day was come to."""

    def __init__(self, owners: Mapping[str, str]) -> None:
        self.owners = owners

    def __call__(self, context: Any) -> None:
        """Send them; a mail that cannot leave is in the log of the task, and keeps no other back."""
        all_days = outcomes(load_settings(), self.owners, context["dag_run"].run_id)
        lost = [one for one in all_days if not one.published]
        told = {self.owners[one.detector] for one in lost} or set(self.owners.values())
        failed = None
        for owner in sorted(told):
            days = [one for one in lost if self.owners[one.detector] == owner]
            try:
                SmtpNotifier(to=owner, subject=_SUBJECT, html_content=_PAGE)(
                    {**context, "days": days, "address_of": address_of}
                )
            except Exception as error:
                failed = error
        if failed is not None:
            raise failed
