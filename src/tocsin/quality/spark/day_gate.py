"""The gate between sealing a day and publishing it: profile, rules, drift, verdict, and the report for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tocsin.declare.model.durations import EPOCH, MICROSECOND
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.quality.data_drift import drift_checks, usual_figures, weekdays_before
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.day_profile import HOURS, Figure, Profile, bounds, is_number, ratio
from tocsin.quality.judging import day_checks, quarantine_checks, row_checks, schema_checks
from tocsin.quality.report_page import day_page
from tocsin.quality.suites.row_rules import RowRule
from tocsin.quality.suites.suite_catalog import read_suites
from tocsin.quality.verdict import MAX_SAMPLES, Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord
from tocsin.spark.events import IDENTITY


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


_QUANTILES = {"p05": 0.05, "median": 0.5, "p95": 0.95}
_ACCURACY = 1_000
_HOUR = "tocsin_hour"


def profile_of(sealed: DataFrame, source: Source, rules: Sequence[RowRule], facts: DayFacts) -> Profile:
    """Compute the figures of one sealed day.

    `sealed` has its events, each once: `event_time` and the declared columns of `source`. Errors of Spark pass through:
    a retry helps if its files can be read again.
    """
    figures = _figures(source, rules)
    row = _with_hour(sealed).agg(*_numbered(figures)).collect()[0]
    return _profile(dict(zip(figures, row, strict=True)), source, rules, facts)


def profiles_of(
    sealed: DataFrame, day: str, source: Source, rules: Sequence[RowRule], facts: Sequence[DayFacts]
) -> dict[date, Profile]:
    """The figures of several days, by one query: as `profile_of`, but with the column `day` in `sealed`."""
    figures = _figures(source, rules)
    rows = _with_hour(sealed).groupBy(day).agg(*_numbered(figures)).collect()
    found = {row[0]: _profile(dict(zip(figures, row[1:], strict=True)), source, rules, known)
             for row in rows for known in facts if known.day == row[0]}  # fmt: skip
    empty = [known for known in facts if known.day not in found]
    return found | {known.day: profile_of(sealed.where(F.lit(False)), source, rules, known) for known in empty}


def _figures(source: Source, rules: Sequence[RowRule]) -> dict[str, Column]:
    hours = {name: F.count_if(F.col(_HOUR) == hour) for hour, name in enumerate(HOURS)}
    # Spark gives times in the zone of this process; numbers it gives as they are.
    first, last = (F.unix_micros(of("event_time")) for of in (F.min, F.max))
    figures = {"rows": F.count(F.lit(1)), "first_event": first, "last_event": last} | hours
    for column, kind in source.columns.items():
        figures |= {f"{column}.{name}": of for name, of in _column_figures(column, kind).items()}
    for rule in rules:
        figures[f"{rule.name}.violations"] = F.count_if(F.expr(rule.broken()))
        if _concerned(rule, source) not in figures:
            figures[_concerned(rule, source)] = F.count_if(F.expr(rule.applies()))
    return figures


def _numbered(figures: dict[str, Column]) -> list[Column]:
    """Give `figures` numbers for names; names with dots would have to be quoted."""
    return [of.alias(f"f{number}") for number, of in enumerate(figures.values())]


def _with_hour(sealed: DataFrame) -> DataFrame:
    # As a column of its own the hour is taken once for each event, not 24 times.
    return sealed.withColumn(_HOUR, F.hour("event_time"))


def _profile(counted: dict[str, Any], source: Source, rules: Sequence[RowRule], facts: DayFacts) -> Profile:
    counted = {name: _plain(value) for name, value in counted.items()}
    return Profile(
        source=source.name,
        day=facts.day,
        version=facts.version,
        figures=_of_day(counted, facts) | _of_columns(counted, source) | _of_rules(counted, source, rules),
    )


def samples_of(sealed: DataFrame, rule: RowRule) -> tuple[str, ...]:
    """Return at most 10 identities (`raw.logins/0/42`) of events that break `rule`; a scan that ends with the tenth."""
    rows = sealed.where(F.expr(rule.broken())).select(*IDENTITY).limit(MAX_SAMPLES).collect()
    return tuple(sorted("/".join(str(part) for part in row) for row in rows))


def _column_figures(column: str, kind: str) -> dict[str, Column]:
    value = F.col(f"`{column}`")
    finite = value if kind != "double" else F.when(~F.isnan(value) & (F.abs(value) < float("inf")), value)
    there = F.when(~F.isnan(value), value) if kind == "double" else value
    figures = {"there": F.count(there)}
    if kind in ("string", "int", "bigint"):
        figures["distinct"] = F.hll_sketch_estimate(F.hll_sketch_agg(value))
    if kind == "string":
        figures["distinct"] += F.coalesce(
            F.max((value == "").cast("int")), F.lit(0)
        )  # sketches pass over the empty text
        figures["longest"] = F.max(F.octet_length(value))
    if kind == "boolean":
        figures["true_ratio"] = F.avg(value.cast("int"))
    if kind == "double":
        figures["infinite"] = F.count_if(F.abs(value) == float("inf"))
    if is_number(kind):
        shares = F.array(*[F.lit(share) for share in _QUANTILES.values()])
        figures |= {"mean": F.avg(finite), "minimum": F.min(finite), "maximum": F.max(finite)}
        figures["quantiles"] = F.percentile_approx(finite, shares, _ACCURACY)
    return figures


def _of_day(counted: dict[str, Any], facts: DayFacts) -> dict[str, Figure]:
    first, last = (_moment(counted[name]) for name in ("first_event", "last_event"))
    hours = sum(counted[name] > 0 for name in HOURS)
    return {
        "rows": counted["rows"],
        "landed": facts.landed,
        "imported": facts.imported,
        "duplicates": facts.duplicates,
        "duplicate_ratio": ratio(facts.duplicates, facts.landed),
        "late": facts.late,
        "late_ratio": ratio(facts.late, facts.landed),
        "quarantined": facts.quarantined,
        "quarantine_ratio": facts.quarantine_ratio,
        "missing_offsets": facts.holes,
        "first_event": first,
        "last_event": last,
        "quiet_minutes": None if last is None else (bounds(facts.day)[1] - last).total_seconds() / 60,
        "hours": hours,
        "completeness": hours / 24,
        **{name: counted[name] for name in HOURS},
    }


def _of_columns(counted: dict[str, Any], source: Source) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for column, kind in source.columns.items():
        own = {name: counted[f"{column}.{name}"] for name in _column_figures(column, kind)}
        quantiles = own.pop("quantiles", None) or [None] * len(_QUANTILES)
        own["nulls"] = counted["rows"] - own.pop("there")
        own["null_ratio"] = ratio(own["nulls"], counted["rows"])
        if is_number(kind):
            own |= {name: _plain(of) for name, of in zip(_QUANTILES, quantiles, strict=True)}
        figures |= {f"{column}.{name}": of for name, of in own.items()}
    return figures


def _of_rules(counted: dict[str, Any], source: Source, rules: Sequence[RowRule]) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for rule in rules:
        broken, concerned = counted[f"{rule.name}.violations"], counted[_concerned(rule, source)]
        figures |= {f"{rule.name}.violations": broken, f"{rule.name}.violation_ratio": ratio(broken, concerned)}
    return figures


def _concerned(rule: RowRule, source: Source) -> str:
    """The count of the events that `rule` is about: most rules leave out nothing but what is missing."""
    if rule.applies() == "true":
        return "rows"
    columns = rule.rule.columns
    alone = len(columns) == 1 and columns[0] in source.columns
    return f"{columns[0]}.there" if alone else f"{rule.name}.concerned"


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + micros * MICROSECOND


def _plain(value: Any) -> Any:
    """Null for what JSON cannot say."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
