"""Great Expectations, run on a small table in memory: in an ephemeral context, which writes nothing and asks nobody.

Loading it costs some five CPU-seconds, so it is loaded by who first judges something, and never at import.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tocsin.quality.suites.suite import Rule
from tocsin.quality.verdict import MAX_SAMPLES

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class RuleOutcome:
    """The result of one rule.

    Attributes:
        observed: the figure that it is about, where it is about one.
        unexpected, judged: how many values break it, of how many; None where it is not about single values.
        samples: at most 10 values of the index column, of rows that break it.
        error: why it could not be judged; empty when it could.
    """

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
    suite = suite_type(name="tocsin", expectations=[rule.as_gx() for rule in rules])
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
    return {result.expectation_config.meta["name"]: _outcome(result, index) for result in results}


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
