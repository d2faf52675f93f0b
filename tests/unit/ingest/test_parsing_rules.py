"""The version of the rules changes with their meaning, and says which part has changed."""

from pathlib import Path
from typing import Any

import pytest

from tocsin.declare.model.source import Source
from tocsin.declare.source_file import read_source
from tocsin.ingest.parsing_rules import reason_class, rule_parts, rules_version
from tocsin.quality.suites.suite_catalog import read_row_rules

ROOT = Path(__file__).parents[3]
LOGINS = read_source(ROOT / "sources/logins.toml")


def changed(**fields: Any) -> set[str]:
    before = rule_parts(LOGINS)
    after = rule_parts(Source(**(LOGINS.model_dump() | fields)))
    return {part for part in before if before[part] != after[part]}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"title": "Other", "owner": "x@example.com", "lateness": "PT20S", "partitions": 9}, set()),
        ({"formats": ("json", "key-value")}, set()),
        ({"formats": ("json",)}, {"format"}),
        ({"pair_separator": " ; "}, {"format"}),
        ({"columns": LOGINS.columns | {"message": "int"}}, {"schema"}),
        ({"optional": {"message", "action"}}, {"schema"}),
        ({"schema_version": 2}, {"schema"}),
        ({"event_time_format": "epoch-seconds"}, {"event_time"}),
        ({"max_ahead": "PT1H"}, {"event_time"}),
        ({"max_bytes": 1000}, {"limits"}),
    ],
)
def test_which_part_changes(fields: dict[str, Any], parts: set[str]) -> None:
    assert changed(**fields) == parts


def test_the_version_follows_every_part() -> None:
    parts = rule_parts(LOGINS)
    assert set(parts) == {"format", "schema", "event_time", "limits", "expectations", "parser"}
    versions = {rules_version(parts | {part: "other"}) for part in parts} | {rules_version(parts)}
    assert len(versions) == 7


def test_what_is_expected_of_events_is_a_part() -> None:
    expected = read_row_rules(ROOT, LOGINS)
    before, after = rule_parts(LOGINS), rule_parts(LOGINS, expected)
    assert {part for part in before if before[part] != after[part]} == {"expectations"}
    others = [rule_parts(LOGINS, [one for one in expected if one is not rule])["expectations"] for rule in expected]
    assert len({*others, after["expectations"]}) == len(expected) + 1


def test_a_reason_has_a_class() -> None:
    assert (reason_class("missing:user_id"), reason_class("not_utf8")) == ("missing", "not_utf8")
