"""The gate between sealing a day and publishing it: profile, rules, drift, verdict, and the report for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime

from pyspark.sql import DataFrame

from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.quality.data_drift import drift_checks, usual_figures, weekdays_before
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.day_profile import Profile, bounds
from tocsin.quality.judging import day_checks, quarantine_checks, row_checks, schema_checks
from tocsin.quality.report_page import day_page
from tocsin.quality.spark.profile_query import profile_of, profiles_of, samples_of
from tocsin.quality.suites.suite_catalog import read_suites
from tocsin.quality.verdict import Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord


class DayGate:
    """Judges sealed days of one source.

    Making it raises ConfigError if a suite of the source has faults. A retry does not help.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self._source = source
        self._suites = read_suites(settings.project, source)
        self._records = Records(settings.state)

    def profiles(self, sealed: DataFrame, day: str, facts: Sequence[DayFacts]) -> dict[date, Profile]:
        """Make the profiles of days to be judged, which lie in `sealed` together; its column `day` says of which."""
        return profiles_of(sealed, day, self._source, self._suites.rows, facts)

    def judge(self, day: date, sealed: DataFrame, facts: DayFacts, profile: Profile | None = None) -> Verdict:
        """Judge `day`, and keep record and page below `<state>/quality/<source>/<day>/`. The index is the caller's.

        `sealed` has its events, each once: the columns of an event, then those that the source declares. `facts` is
        what sealing knows besides; its version names the run. `profile` is that of the events, if it was made before.
        OSError if the report cannot be written; a retry helps once there is room.
        """
        profile = profile or profile_of(sealed, self._source, self._suites.rows, facts)
        before = self._records.profiles(self._source.name, weekdays_before(day))
        over = datetime.now(UTC) >= bounds(day)[1]
        usual = usual_figures(before) if over else {}  # half a day is not to be compared with whole ones
        samples = {
            rule.name: samples_of(sealed, rule)
            for rule in self._suites.rows
            if profile.number(f"{rule.name}.violations")
        }
        checks = day_checks(self._suites.day, profile, usual, over=over)
        checks += quarantine_checks(self._suites.day, facts) + schema_checks(facts)
        checks += row_checks(self._suites.rows, profile, samples)
        checks += drift_checks(profile, usual, self._suites.day.half)
        verdict = Verdict(
            subject=self._source.name,
            day=day,
            run_id=facts.version,
            judged_at=datetime.now(UTC),
            checks=tuple(checks),
            report=self._records.place(self._source.name, day, facts.version),
        )
        record = VerdictRecord(verdict=verdict, profile=profile)
        self._records.write(record, day_page(record, self._records, before, self._source))
        return verdict
