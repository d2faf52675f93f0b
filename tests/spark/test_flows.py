"""What a flow makes of events: identities, what is left out, and what `check --plan` says about its file."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark.conftest import Feed, tick
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.declaration import read_flow
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.flow import FlowSpec
from tocsin.declare.model.names import Names
from tocsin.ingest.flows.spark.flow_plan import OBSERVATION, apply_flow, make_events, plan_flow
from tocsin.spark.declared_function import DeclaredFunction
from tocsin.spark.events import parse_events

EXAMPLE = Path(__file__).parents[2] / "examples" / "words"
Records = Callable[[list[dict[str, Any]]], DataFrame]


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return read_catalog(EXAMPLE)


def line(text: str | None, offset: int, **columns: Any) -> dict[str, Any]:
    at = "2026-01-01T12:00:00.000000Z"
    envelope = {"event_time": at, "ingested_at": at, "source": "lines", "schema_version": 1}
    place = {"raw_topic": "raw.lines", "raw_partition": 1, "raw_offset": offset}
    return place | envelope | {"at": at, "writer": "ann", "line": text} | columns


def rows_of(spec: FlowSpec, catalog: Catalog, records: DataFrame) -> DataFrame:
    rows = apply_flow(DeclaredFunction(spec.path, "flow"), spec, catalog.sources_of(spec), lambda _: records)
    return make_events(rows, spec, catalog.source(spec.to), Names("t."))


def written(name: str, catalog: Catalog, records: DataFrame) -> list[dict[str, Any]]:
    found = rows_of(catalog.flow(name), catalog, records).collect()
    assert {row.topic for row in found} <= {f"t.events.{catalog.flow(name).to}"}
    return [json.loads(row.value) | {"": row.key} for row in found]


TEXTS = ["To be, or not to be", "  Straße_7 … ÉTÉ\tété ", "Ελλάδα и Россия 東京 2026", "...", "naïve—dash\nline two"]


def test_words_are_those_that_python_finds_each_with_an_identity_of_its_own(catalog: Catalog, records: Records) -> None:
    lines = [line(text, offset) for offset, text in enumerate(TEXTS)]
    found = written("words", catalog, records([*lines, tick("12:00:01")]))
    expected = {
        (f"flow:words/{position}:raw.lines", 1, offset, word)
        for offset, text in enumerate(TEXTS)
        for position, word in enumerate(re.split(r"\W+", text.lower()))
        if word
    }
    assert {(e["raw_topic"], e["raw_partition"], e["raw_offset"], e["word"]) for e in found} == expected
    assert len(found) == len(expected)
    assert {(e["source"], e["schema_version"], e["writer"]) for e in found} == {("words", 1, "ann")}
    assert {(e["event_time"], e["ingested_at"]) for e in found} == {("2026-01-01T12:00:00.000000Z",) * 2}
    assert all(e[""] == e["word"] for e in found)


def test_a_flow_without_positions_keeps_one_event_of_one(catalog: Catalog, records: Records) -> None:
    chained = line("an apple", 2, raw_topic="flow:lines/4:raw.pages")
    found = written("text_transformer", catalog, records([line("a", 0), line("b", 1), chained]))
    assert [(e["raw_topic"], e["raw_offset"], e["line"]) for e in found] == [
        ("flow:text_transformer/:raw.lines", 0, "A"),
        ("flow:text_transformer/:flow:lines/4:raw.pages", 2, "AN APPLE"),
    ]


FLOW = '''"""Words."""
from pyspark.sql import functions as F
from tocsin import flow

@flow(source="lines", to="words", owner="a@example.com", stage="live")
def flow(events):
    {body}
'''
WORDS = "return events.select('*', F.posexplode(F.split('line', ' ')).alias('position', 'w'))"
BY_LINE = "return events.select('*', F.explode(F.split('line', ' ')).alias("
UNPIVOTED = (
    "return events.withColumn('other', F.upper('line')).unpivot(events.columns, ['line', 'other'], 'variable', 'word')"
    ".withColumn('position', "
)
SHORT = 'return events.select("*", F.col("line").alias("word"))'


def spec_of(folder: Path, body: str) -> FlowSpec:
    path = folder / "short.py"
    path.write_text(FLOW.replace("{body}", body))
    return read_flow(path)


def test_what_cannot_be_an_event_is_left_out_and_counted(spark: SparkSession, tmp_path: Path, catalog: Catalog) -> None:
    feed = Feed(spark, tmp_path / "topic")
    early, late = "1970-06-01T00:00:00.000000Z", "2026-01-01T12:00:05.000001Z"
    left_out = [
        line(None, 1), line("x", 2, writer=None), line("x", 3, event_time=late), line("x", 4, event_time=early),
        line("x", 5, event_time=None), line("x", 6, raw_topic=None), line("\x01" * 1_300_000, 7),
    ]  # fmt: skip
    on_time = line("ok", 8, event_time="2026-01-01T12:00:05.000000Z")
    feed.send([line("good", 0), *left_out, on_time, tick("12:00:01")])
    rows = rows_of(spec_of(tmp_path, SHORT), catalog, feed.records)
    writer = rows.writeStream.format("memory").queryName("flow_events").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(60)
    assert query.lastProgress is not None
    counts = json.loads(query.lastProgress.json)["observedMetrics"][OBSERVATION]
    assert counts == {
        "no_identity": 1, "null_key": 1, "missing": 1, "no_time": 1, "time_ahead": 1, "time_too_old": 1, "too_long": 1,
    }  # fmt: skip
    kept = spark.sql("select value from flow_events").collect()
    assert [json.loads(row.value)["word"] for row in kept] == ["good", "ok"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('return events.groupBy("line").count()', "flow: keeps state, as an aggregate does"),
        ('return events.select("*", F.explode(F.split("line", " ")).alias("word"))', "use F.posexplode"),
        ('return events.select("*", F.lit(1).alias("wrod"))', "word: flow returns no column 'word'"),
        ('return events.select("*", F.lit(1).alias("wrod"))', "did you mean 'wrod'?"),
        ('return events.select("*", F.lit(1).alias("word"))', "word: must be string, not int"),
        (SHORT + '.drop("raw_offset")', "no column 'raw_offset'"),
        (SHORT + '.withColumn("event_time", F.expr("current_timestamp()"))', "flow: calls current_timestamp()"),
        (
            SHORT + ".unionAll(events.select('*', F.col('line').alias('word')))",
            "together with themselves",
        ),
        (
            "return events.groupBy('line').applyInPandas(lambda rows: rows, events.schema)",
            "flow: cannot run: it runs Python code on rows",
        ),
        (SHORT + '.orderBy("word")', "flow: cannot run: it uses orderBy"),
        (SHORT + '.withColumn("position", F.lit("a"))', "position: must be a whole number, not string"),
        (WORDS + ".select('*', F.explode(F.split('w', '-')).alias('word'))", "by the column 'word', of which"),
        ("events = events.withColumn('position', F.lit(0)); " + BY_LINE + "'word'))", "by the column 'word', of which"),
        (UNPIVOTED + "F.lit(0))", "by the column 'word', of which"),
        (SHORT + '.where(F.col("word").rlike("(a|b)*c"))', "overflows Java's stack"),
        ('return events.select("*", "writer", F.col("line").alias("word"))', "writer: occurs twice"),
    ],
)
def test_what_is_wrong_with_a_flow_is_told(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, body: str, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_flow(spark, spec_of(tmp_path, body), catalog)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        WORDS.replace("position", "p") + ".select('*', F.posexplode(F.split('w', '-')).alias('q', 'word'))"
        ".withColumn('position', F.col('p') * 1000 + F.col('q'))",
        BY_LINE + "'word')).withColumn('position', F.crc32('word'))",
        UNPIVOTED + "F.when(F.col('variable') == 'line', 0).otherwise(1))",
    ],
)
def test_a_position_may_be_made_of_what_tells_rows_apart(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, body: str
) -> None:
    plan_flow(spark, spec_of(tmp_path, body), catalog)


BOTH = "lines, words = events['lines'].withColumnRenamed('line', 'word'), events['words']; "


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (BOTH + "return lines.select(words.columns).unionByName(words)", ""),
        (
            BOTH + "return lines.select(words.columns).unionByName(words).unionByName(words)",
            "together with themselves",
        ),
        (BOTH + "return lines.join(words.select('word'), 'word')", "joins two streams, which takes state"),
        (BOTH + "return words", "does not read source 'lines'"),
        ("return events['line']", "did you mean 'lines'?"),
        ("return events.with_window(events['lines'])", "there is no window to add: a flow has none"),
    ],
)
def test_a_flow_puts_sources_together_and_does_not_join_them(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, body: str, told: str
) -> None:
    spec, both = two_sources(tmp_path, catalog, body)
    if told:
        with pytest.raises(ConfigError) as caught:
            plan_flow(spark, spec, both)
        assert told in str(caught.value)
    else:
        assert plan_flow(spark, spec, both).order == ["lines", "words"]


def two_sources(folder: Path, catalog: Catalog, body: str) -> tuple[FlowSpec, Catalog]:
    spec = replace(spec_of(folder, body), sources=("words", "lines"), to="both")
    to = catalog.source("words").model_copy(update={"name": "both"})
    return spec, Catalog(sources={**catalog.sources, "both": to}, flows={**catalog.flows, spec.name: spec})


def test_events_of_several_sources_keep_apart(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, records: Records
) -> None:
    spec, both = two_sources(tmp_path, catalog, BOTH + "return lines.select(words.columns).unionByName(words)")
    word = line(None, 0, raw_topic="flow:words/0:raw.lines", source="words", word="b")
    given = {"lines": [line("a", 0), tick("12:00:01")], "words": [word, tick("12:00:01")]}
    flow = plan_flow(spark, spec, both).function
    rows = apply_flow(flow, spec, both.sources_of(spec), lambda source: records(given[source.name]))
    found = [json.loads(row.value) for row in make_events(rows, spec, both.source("both"), Names()).collect()]
    assert {(one["raw_topic"], one["raw_offset"], one["word"]) for one in found} == {
        ("flow:short/:raw.lines", 0, "a"),
        ("flow:short/:flow:words/0:raw.lines", 0, "b"),
    }


@pytest.mark.parametrize("name", ["words", "text_transformer"])
def test_the_shipped_flows_are_well(spark: SparkSession, catalog: Catalog, name: str) -> None:
    plan_flow(spark, catalog.flow(name), catalog)


def test_what_a_flow_has_written_is_read_as_events(catalog: Catalog, records: Records, spark: SparkSession) -> None:
    rows = rows_of(catalog.flow("words"), catalog, records([line("One two", 7)])).select("value")
    read = parse_events(rows, catalog.source("words")).collect()
    assert [(row.raw_topic, row.raw_offset, row.word, row.tick) for row in read] == [
        ("flow:words/0:raw.lines", 7, "one", None),
        ("flow:words/1:raw.lines", 7, "two", None),
    ]
