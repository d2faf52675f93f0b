"""Patterns that one record could stop a job with are refused; those that people write are not."""

import re
from argparse import Namespace
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.rig.samples.project import copy_project
from tests.rig.samples.visits import VISITS, expect, write
from tests.spark.plans import SOURCE, SPEC
from tests.spark.raw_records import reading, source
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Format, Source
from tocsin.declare.settings import Settings
from tocsin.ingest.spark import patterns
from tocsin.ingest.spark.ingestion import ingestion
from tocsin.ingest.spark.patterns import check_function, check_source
from tocsin.quality.suites.suite_catalog import read_row_rules
from tocsin.spark.plan_tree import parse_tree
from tocsin.spark.query.work import Run

OVERFLOWING = [
    r'"((?:[^"\\]|\\.)*)"',
    r"(?:ab|cd)*y",
    r"^(\d+,)*$",
    r"(a|b)+?c",
    r"(?i)^x(?:\p{Alpha}+-?)*$",
    r"^[^x]{0,1000000}y",
]
FINE = [
    r'"((?:[^"\\]|\\.)*+)"',
    r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"',
    r'^([^ ]+) - ([^ ]+) \[([^\]]+)\] "([A-Z]+) ([^ "]+) HTTP/[0-9.]+" ([0-9]{3}) ([0-9]+) "([^"]*)"$',
    r"^/|^[^\\'a-z]*$",
    r"^(?:login|logout) (failed|succeeded)$",
    r"^\p{L}[\w.-]{0,63}@[\w.-]{1,253}$",
    "['\"]",
    r"^(?:[0-9]{1,3}\.){3}[0-9]{1,3}$",
    "(?i)timeout",
]


def check(rows: DataFrame, source: Source = SOURCE) -> None:
    tree = parse_tree(rows._jdf.queryExecution().analyzed().toJSON())
    check_function(tree, rows.sparkSession, (SPEC.path, "detect"), source)


def events(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", "b")], "user_id string, action string")


def test_what_overflows_the_stack_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError) as caught:
        check(events(spark).select([F.col("action").rlike(pattern) for pattern in OVERFLOWING]))
    faults = caught.value.faults
    assert len(faults) == len(OVERFLOWING)
    assert {(fault.where, fault.key) for fault in faults} == {("detectors/d.py", "detect")}
    overflow = re.compile(r"overflows Java's stack on 262,1\d\d bytes like .* possessive")
    assert [fault for fault in faults if not overflow.search(str(fault))] == []


def test_what_takes_too_long_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "LONGEST_SECONDS", 0.02)
    short = SOURCE.model_copy(update={"max_bytes": 15_000})  # its time grows with the square of the length
    with pytest.raises(ConfigError, match=r"'failed\.\*login' takes more than 0 s on 14,\d+ bytes"):
        check(events(spark).where("action RLIKE 'failed.*login'"), short)


def test_what_people_write_is_not_refused(spark: SparkSession) -> None:
    check(events(spark).select([F.col("action").rlike(pattern) for pattern in FINE]))


FUNCTIONS = (
    *("regexp_extract(action, '{}', 0)", "regexp_replace(action, '{}', '')", "regexp_count(action, '{}')"),
    *("split(action, '{}')", "regexp_extract_all(action, '{}', 0)", "regexp_substr(action, '{}')"),
    *("regexp_instr(action, '{}')", "action REGEXP '{}'"),
)


def test_patterns_are_found_in_every_function(spark: SparkSession) -> None:
    broken = [f"{number}(" for number in range(len(FUNCTIONS))]
    with pytest.raises(ConfigError) as caught:
        check(events(spark).selectExpr(*map(str.format, FUNCTIONS, broken)))
    assert len(caught.value.faults) == len(FUNCTIONS)


def test_faults_of_a_source_and_its_rules_are_told_all_at_once(spark: SparkSession, tmp_path: Path) -> None:
    matching: dict[str, Any] = {"kind": "column_values_to_match_regex", "column": "page"}
    write(
        tmp_path, "rows", expect(name="deep", regex="(a|b)*c", **matching), expect(name="flat", regex="^/", **matching)
    )
    rules = read_row_rules(tmp_path, VISITS)
    lines = VISITS.model_copy(
        update={
            "formats": (Format.REGEX,),
            "patterns": ("(?<visitor>(?:a|b)*) (?<at>.*)",),
            "ignore": ("^#", "(x|y)*z"),
        }
    )
    with pytest.raises(ConfigError) as told:
        check_source(spark, lines, rules)
    assert [(fault.where, fault.key) for fault in told.value.faults] == [
        ("sources/visits.toml", "pattern"),
        ("sources/visits.toml", "ignore"),
        ("expectations/visits.rows.json", "deep.regex"),
    ]
    check_source(spark, VISITS, rules[1:])


def test_an_ingest_tries_the_patterns_before_it_reads(spark: SparkSession, tmp_path: Path) -> None:
    copy_project(tmp_path)
    path = tmp_path / "sources/logins.toml"
    columns = r"(?<user_id>[^ ]+) (?<timestamp>[^ ]+) (?<ip_address>[^ ]+) (?<action>(?:[^\\]|\\.)*)"
    text = path.read_text()
    path.write_text(text.replace('format = ["key-value", "json"]', f"format = 'regex'\npattern = '{columns}'"))
    with pytest.raises(ConfigError, match="overflows Java's stack"):
        ingestion(Settings(project=tmp_path, state=tmp_path / "state"), "logins").start(
            cast(Run, Namespace(spark=spark))
        )


def test_a_line_that_overflows_the_matcher_goes_to_quarantine(spark: SparkSession) -> None:
    recursive, possessive = (rf'(?<at>[^ ]+) "(?<visitor>(?:[^"\\]|\\.){repeat})"' for repeat in ("*", "*+"))
    columns = {"visitor": "string", "at": "timestamp"}
    visits = source(formats=(Format.REGEX,), patterns=(recursive,), columns=columns, optional=frozenset())
    texts = [f'2026-01-01T11:59:59Z "{"x" * length}"' for length in (9, 2_000, 20_000, visits.max_bytes - 23)]
    read = reading(spark)
    found = read(visits, *texts, texts[0], 'nothing\0 "at" all')
    assert found[1].reasons in ([], ["no_match"]), "near the edge the depth of the stack decides"
    assert [out.reasons for out in found[:1] + found[2:]] == [[], ["no_match"], ["no_match"], [], ["no_match"]]
    whole = read(visits.model_copy(update={"patterns": (possessive,)}), *texts)
    assert [len(out.columns["visitor"]) for out in whole] == [9, 2_000, 20_000, visits.max_bytes - 23]
