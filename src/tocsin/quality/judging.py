"""From figures to checks: rules for rows by what was counted, rules for the day and for findings by running them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from tocsin.declare.model.finding import Finding, canonical_entity
from tocsin.declare.model.source import Source
from tocsin.declare.settings import Settings
from tocsin.quality.data_drift import Usual
from tocsin.quality.day_facts import DayFacts
from tocsin.quality.day_profile import Profile, bounds
from tocsin.quality.report_page import day_page
from tocsin.quality.suites.row_rules import RowRule
from tocsin.quality.suites.suite import DAY_HOURS, Rule, Suite, shown, usual
from tocsin.quality.suites.suite_catalog import FINDING_COLUMNS, read_suites
from tocsin.quality.verdict import MAX_SAMPLES, Check, CheckStage, Severity, Verdict
from tocsin.quality.verdict_files import Records, VerdictRecord, subject_of

if TYPE_CHECKING:
    import pandas as pd


DAYS = 28
"""Of so many days the number of findings is compared."""

MUCH, MOST = 0.05, 0.5
"""Shares of what came in that could not be used: above the first a day warns, above the other it is not published."""

LEAST_RECORDS = 1_000
"""Of fewer records the share says nothing: two bad lines are no reason to stop a day."""

_QUARANTINE_RATIO = "quarantine_ratio"


def row_checks(rules: Sequence[RowRule], profile: Profile, samples: Mapping[str, tuple[str, ...]]) -> list[Check]:
    """Judge a whole day by the rules for single events; `samples` are identities by the name of the rule."""
    checks = []
    for rule in rules:
        broken = int(profile.number(f"{rule.name}.violations") or 0)
        share = profile.number(f"{rule.name}.violation_ratio")
        checks.append(
            Check(
                name=rule.name,
                stage=CheckStage.ROW,
                about=" and ".join(rule.rule.columns),
                severity=rule.rule.severity,
                passed=are_few(broken, share, rule.mostly),
                observed=f"{shown(broken)} break it" + (f", {share:.2%} of the values" if broken and share else ""),
                limit=rule.rule.limit,
                meaning=rule.rule.meaning,
                samples=samples.get(rule.name, ()),
            )
        )
    return checks


def are_few(broken: int, share: float | None, mostly: float) -> bool:
    """Return whether a rule that asks for `mostly` passes: `broken` values break it, a `share` of all it is about."""
    if not broken or not share:
        return True
    judged = round(broken / share)
    return (judged - broken) / judged >= mostly  # as Great Expectations; 1 - 0.07 < 0.93


def day_checks(suite: Suite, profile: Profile, usual_figures: Mapping[str, Usual], *, over: bool = True) -> list[Check]:
    """Judge the profile of a day by its rules, in their order.

    A rule that compares with what is usual passes as long as too few days are known, and one about the hours of a day
    as long as that is not `over`. A figure that is null breaks every rule but the one that expects it: a gate must not
    open because there is nothing to look at.
    """
    start, end = bounds(profile.day)
    parameters: dict[str, Any] = {"day_start": start, "day_end": end}
    parameters |= {DAY_HOURS: 24.0} if over else {}
    parameters |= {usual(name): one.middle for name, one in usual_figures.items()}
    ready = _filled(suite, parameters)
    found = outcomes(_one_row(profile), list(ready.values()))
    return [_day_check(ready.get(rule.name, rule), profile, found.get(rule.name)) for rule in suite.rules]


def quarantine_checks(suite: Suite, facts: DayFacts) -> list[Check]:
    """Check that enough of what came in could be used; without a check where the suite has a rule of its own about it.

    A replay from quarantine repairs a day: even if all that came in was refused at first, half is then left.
    """
    share = facts.quarantine_ratio
    if share is None or any(_QUARANTINE_RATIO in rule.columns for rule in suite.rules):
        return []
    return [
        Check(
            name="quarantine",
            stage=CheckStage.DAY,
            about=_QUARANTINE_RATIO,
            severity=Severity.CRITICAL if share > MOST else Severity.WARNING,
            passed=share <= MUCH or facts.records < LEAST_RECORDS,
            observed=f"{share:.2%}, {shown(facts.quarantined)} of {shown(facts.records)} records",
            limit=f"at most {MUCH:.0%}; above {MOST:.0%} the day is not published",
            meaning="Many records were unusable: fix the source or its declaration, and replay",
        )
    ]


def schema_checks(facts: DayFacts) -> list[Check]:
    """Check that the day landed as the source is declared now; a warning when values are lost, else shown alone."""
    if not facts.changes:
        return []
    return [
        Check(
            name="one_declaration",
            stage=CheckStage.DAY,
            about=" and ".join(dict.fromkeys(change.column for change in facts.changes)),
            severity=Severity.WARNING if any(change.lost for change in facts.changes) else Severity.INFO,
            passed=False,
            observed="; ".join(change.sentence for change in facts.changes),
            limit="the same columns and types for all events",
            meaning="The declaration of the source has changed since events of this day landed",
        )
    ]


def finding_checks(suite: Suite, findings: Sequence[Finding], day: date, before: Sequence[int]) -> list[Check]:
    """Judge the findings of one detector and `day` by the rules of its source, in their order.

    `before` has the number of findings published on each known day of the 28 before.
    """
    start, end = bounds(day)
    parameters: dict[str, Any] = {"day_start": start, "day_end": end, "days_known": float(len(before))}
    if before:
        parameters |= {"usual_findings": float(median(before)), "most_findings": float(max(before))}
    ready = _filled(suite, parameters)
    found = outcomes(_table(findings), list(ready.values()), index="finding_id")
    return [_finding_check(ready.get(rule.name, rule), found.get(rule.name)) for rule in suite.rules]


def _filled(suite: Suite, parameters: Mapping[str, Any]) -> dict[str, Rule]:
    """The rules that can be judged, with their parameters filled in, by name."""
    filled = {rule.name: rule.filled(parameters) for rule in suite.rules}
    return {name: rule for name, rule in filled.items() if rule is not None}


def _day_check(rule: Rule, profile: Profile, outcome: RuleOutcome | None) -> Check:
    values = [profile.figures.get(name) for name in rule.columns]
    empty = None in values and rule.expectation != "expect_column_values_to_be_null"
    return Check(
        name=rule.name,
        stage=CheckStage.DAY,
        about=" and ".join(rule.columns),
        severity=rule.severity,
        passed=outcome is None or (outcome.passed and not empty),
        judged=outcome is not None,
        observed=_observed(" and ".join(map(shown, values)), outcome),
        limit=rule.limit + ("" if outcome else _later(rule)),
        meaning=rule.meaning,
    )


def _later(rule: Rule) -> str:
    return ", once the day is over" if DAY_HOURS in rule.limit else ", once four such days are known"


def _finding_check(rule: Rule, outcome: RuleOutcome | None) -> Check:
    observed, nothing = "not judged", False
    if outcome is not None:
        # A mean of no findings keeps no limit, but a day without findings is a good one.
        nothing = outcome.unexpected is None and outcome.observed is None and not outcome.error
        counted = f"{shown(outcome.unexpected)} of {shown(outcome.judged)} break it"
        observed = shown(outcome.observed) if outcome.unexpected is None else counted
    return Check(
        name=rule.name,
        stage=CheckStage.FINDING,
        about=" and ".join(rule.columns),
        severity=rule.severity,
        passed=outcome is None or outcome.passed or nothing,
        judged=outcome is not None and not nothing,
        observed=_observed(observed, outcome),
        limit=rule.limit + ("" if outcome else ", once an earlier day is known"),
        meaning=rule.meaning,
        samples=() if outcome is None or outcome.passed else outcome.samples,
    )


def _observed(observed: str, outcome: RuleOutcome | None) -> str:
    return f"not judged: {outcome.error}" if outcome is not None and outcome.error else observed


def _one_row(profile: Profile) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame([dict(profile.figures)])


def _table(findings: Sequence[Finding]) -> pd.DataFrame:
    """The findings, with the columns and types of FINDING_COLUMNS, also when there is none."""
    import pandas as pd

    types = {"timestamp": "datetime64[us, UTC]", "double": "float64", "boolean": "bool", "string": "object"}
    rows = [{name: _cell(one, name) for name in FINDING_COLUMNS} for one in findings]
    table = pd.DataFrame(rows, columns=list(FINDING_COLUMNS))
    return table.astype({name: types[kind] for name, kind in FINDING_COLUMNS.items()})


def _cell(finding: Finding, name: str) -> str | float | datetime | None:
    value = canonical_entity(finding.entity) if name == "entity" else getattr(finding, name)
    return value


@dataclass(frozen=True)
class RuleOutcome:
    """The result of one rule."""

    passed: bool
    observed: Any = None
    unexpected: int | None = None
    judged: int | None = None
    samples: tuple[str, ...] = ()
    error: str = ""


def outcomes(table: pd.DataFrame, rules: Sequence[Rule], *, index: str | None = None) -> dict[str, RuleOutcome]:
    """Run `rules` of one suite, with all parameters filled in, on `table`; return the results by the name of the rule.

    `table` has a few thousand rows at most, since failing rows are looked for one by one. Values of the column `index`
    become the samples; without it none are taken.
    """
    if not rules:
        return {}
    gx, suite_type = _load()
    refused = {rule.name: RuleOutcome(passed=False, error=why) for rule in rules if (why := _refusal(suite_type, rule))}
    suite = suite_type(name="tocsin", expectations=[rule.as_gx() for rule in rules if rule.name not in refused])
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_pandas("memory").add_dataframe_asset("table")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch({"dataframe": table})
    form: dict[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": MAX_SAMPLES}
    if index is not None:
        form |= {"result_format": "COMPLETE", "unexpected_index_column_names": [index]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas' advice to Great Expectations, not to us
        results = batch.validate(suite, result_format=form).results
    return refused | {result.expectation_config.meta["name"]: _outcome(result, index) for result in results}


def _refusal(suite_type: Any, rule: Rule) -> str:
    """Say why a rule cannot be run with its parameters filled in, such as limits that then cross; empty if it can."""
    try:
        suite_type(name="tocsin", expectations=[rule.as_gx()])
    except ValueError as error:
        return str(error).splitlines()[-1].strip()
    return ""


def _load() -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports modules of Python that are on their way out
        import great_expectations
        from great_expectations.core.expectation_suite import ExpectationSuite
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    return great_expectations, ExpectationSuite


def _outcome(result: Any, index: str | None) -> RuleOutcome:
    found = result.result or {}
    rows = found.get("unexpected_index_list") or []
    samples = dict.fromkeys(str(row[index]) for row in rows) if index is not None else {}
    judged = found.get("element_count")
    return RuleOutcome(
        passed=bool(result.success),
        observed=found.get("observed_value"),
        unexpected=found.get("unexpected_count"),
        judged=None if judged is None else judged - (found.get("missing_count") or 0),
        samples=tuple(samples)[:MAX_SAMPLES],
        error=_error(result.exception_info or {}),
    )


def _error(info: Mapping[str, Any]) -> str:
    """The first message of an exception inside Great Expectations, which it tells in two shapes."""
    infos = [info] if "raised_exception" in info else [one for one in info.values() if isinstance(one, dict)]
    return next((str(one.get("exception_message")).strip() for one in infos if one.get("raised_exception")), "")


@dataclass(frozen=True)
class FoundOn:
    """The findings of one detector that are about to be published for one UTC day, on which their windows begin.

    `run_id` is unique for detector and day; `before` has the number published on each known day of the 28 before.
    Findings are judged in memory: some thousands at most.
    """

    detector: str
    day: date
    run_id: str
    findings: Sequence[Finding]
    before: Sequence[int] = ()


class FindingGate:
    """Judges findings of detectors of one source.

    Making it raises ConfigError if a suite of the source has faults. A retry does not help.
    """

    def __init__(self, settings: Settings, source: Source) -> None:
        self._source = source
        self._suite = read_suites(settings.project, source).findings
        self._records = Records(settings.state)

    def judge(self, found: FoundOn) -> Verdict:
        """Judge `found`; the verdict is kept below `<state>/quality/findings.<detector>/<day>/`.

        OSError if the report cannot be written; a retry helps once there is room.
        """
        subject = subject_of(found.detector)
        verdict = Verdict(
            subject=subject,
            day=found.day,
            run_id=found.run_id,
            judged_at=datetime.now(UTC),
            checks=tuple(finding_checks(self._suite, found.findings, found.day, found.before)),
            report=self._records.place(subject, found.day, found.run_id),
        )
        record = VerdictRecord(verdict=verdict)
        self._records.write(record, day_page(record, self._records, [], self._source))
        return verdict
