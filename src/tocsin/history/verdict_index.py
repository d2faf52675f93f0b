"""Write the page of all verdicts. Apart from `seal_outcomes`, which verbs read that draw no page."""

from __future__ import annotations

from tocsin.declare.settings import Settings
from tocsin.history.day_rows import DayRows
from tocsin.quality.report_page import index_page
from tocsin.quality.verdict_files import Records


def write_index(settings: Settings) -> None:
    """Write the page of all verdicts, and of the days that could not be sealed.

    TransientError or OSError if the catalogue cannot be read, or the page not written; a retry helps.
    """
    records, unsealed = Records(settings.state), DayRows(settings, "").unsealed_by_source()
    reasons = {source: {day: one.text for day, one in days.items()} for source, days in unsealed.items()}
    records.write_index(index_page(records, reasons))
