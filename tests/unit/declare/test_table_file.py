"""What the file of a table may say, how its faults are told, and who may join it."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.rig.samples.project import source_file
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import Names
from tocsin.declare.source_file import read_table

GOOD = """
title = "Segments"
owner = "crm@example.com"
source = "customers"
key = "customer_id"

[schema]
customer_id = "string"
segment = "string"
"""
SOURCE = source_file("customer_id", segment="string")
DETECTOR = '''"""Finds."""
from tocsin import Levels, detector
@detector(source="customers", entity="customer_id", window=None, levels=Levels(email=1), owner="o@example.com",
          runbook="r", stage="live", tables={tables})
def detect(events, tables):
    return events
'''
VIEW = '''"""Counts."""
from tocsin import view
@view(source="customers", key="customer_id", window="10 seconds", owner="o@example.com", stage="live")
def view(events):
    return events
'''


def faults(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "segments.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_table(path)
    return [str(fault).removeprefix(f"{path}") for fault in caught.value.faults]


def catalog(project: Path, **files: str) -> Catalog:
    known = {"sources/customers.toml": SOURCE, "tables/segments.toml": GOOD} | files
    for name, text in known.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    return read_catalog(project)


def test_a_small_file_has_sound_defaults(tmp_path: Path) -> None:
    spec = catalog(tmp_path).table("segments")
    assert (spec.key, spec.values, spec.since) == (("customer_id",), ["segment"], "segments_since")
    assert (spec.settle, spec.keep) == (timedelta(minutes=2), timedelta(days=60))
    assert spec.follows(Names("t.")) == "t.events.customers"


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("title", "titel").replace('source = "customers"', 'view = "a"\ntopic = "b"')
    told = faults(tmp_path, text.replace('key = "customer_id"', 'key = "customerid"\nsettle = "soon"'))
    assert [one for one in told if "did you mean 'title'" in one]
    assert [one for one in told if "needs exactly one of source" in one]
    assert [one for one in told if "settle" in one and "soon" in one]
    assert faults(tmp_path, GOOD.replace("segment =", "customerID =").replace('key = "customer_id"', 'key = "x"')) != []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (GOOD.replace('key = "customer_id"', 'key = "customer"'), "'customer' is not a column"),
        (GOOD.replace("[schema]", "[optional]").replace("segment", "[schema]\nsegment"), "may not be optional"),
        (GOOD + '\n[optional]\nSegment = "int"\n', "already declared"),
        (GOOD.replace('source = "customers"', 'file = "segments.txt"'), "must be a file of the project that ends in"),
        (GOOD.replace("segment =", "event_time ="), "is reserved"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, text: str, what: str) -> None:
    assert [one for one in faults(tmp_path, text) if what in one]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (GOOD.replace('"customers"', '"custmers"'), "did you mean 'customers'"),
        (GOOD.replace('segment = "string"', 'segment = "int"'), "source 'customers' declares it as string"),
        (GOOD.replace("source =", "view =").replace('"customers"', '"counts"'), "several rows of one key"),
        (GOOD.replace("source =", "view =").replace('"customers"', '"nothing"'), "view 'nothing' does not exist"),
    ],
)
def test_a_table_of_something_that_is_not_there_is_broken_alone(tmp_path: Path, text: str, what: str) -> None:
    read = catalog(tmp_path, **{"tables/segments.toml": text, "views/counts.py": VIEW})
    assert what in str(read.broken["tables/segments"])
    assert list(read.broken) == ["tables/segments"]


def test_who_joins_a_table_that_is_not_there_is_told_the_nearest(tmp_path: Path) -> None:
    for name, tables in (("good", '["segments"]'), ("bad", '["segment"]'), ("wrong", "5")):
        catalog(tmp_path, **{f"detectors/{name}.py": DETECTOR.format(tables=tables)})
    read = read_catalog(tmp_path)
    assert read.detector("good").tables == ("segments",)
    assert "did you mean 'segments'" in str(read.broken["detectors/bad"])
    assert "tables" in str(read.broken["detectors/wrong"])


STEP = '''"""Steps."""

from dataclasses import dataclass

from tocsin import Event, Levels, StepFinding, detector


@dataclass(frozen=True)
class Seen:
    count: int = 0


@detector(source="customers", entity="{entity}", window=None, forget_after="30 days", levels=Levels(email=1),
          owner="a@b.example", runbook="docs/r.md", stage="draft", tables=["segments"])
def step(key: str, state: Seen, event: Event) -> tuple[Seen, list[StepFinding]]:
    return state, []
'''


def test_whom_a_step_is_about_must_be_a_column_of_its_events(tmp_path: Path) -> None:
    columns = {"own": "customer_id", "case": "Customer_ID", "joined": "segment", "wrong": "custmer_id"}
    for name, entity in columns.items():
        catalog(tmp_path, **{f"detectors/{name}.py": STEP.replace("{entity}", entity)})
    read = read_catalog(tmp_path)
    assert list(read.broken) == ["detectors/wrong"]
    told = "entity: 'custmer_id' is no column of source 'customers'; did you mean 'customer_id'?"
    assert told in str(read.broken["detectors/wrong"])


def test_whom_a_table_names_must_be_the_entity(tmp_path: Path) -> None:
    silent = DETECTOR.replace("window=None", 'window="1 minute"').replace("tables={tables}", "expect={expect}")
    silent = silent.replace("Levels, detector", "Entities, Levels, detector").replace("email=1", "email=0")
    keys = GOOD.replace('segment = "string"', "")
    for name, table, entity in (("good", "people", "customer_id"), ("bad", "peple", "customer_id"),
                                ("wrong", "people", "segment")):  # fmt: skip
        text = silent.format(expect=f'Entities(table="{table}")').replace('entity="customer_id"', f'entity="{entity}"')
        catalog(tmp_path, **{f"detectors/{name}.py": text, "tables/people.toml": keys})
    read = read_catalog(tmp_path)
    assert read.detector("good").tables == ("people",), "a table of keys alone"
    assert "did you mean 'people'" in str(read.broken["detectors/bad"])
    what = "expect: the key of table 'people' (customer_id) must have the columns of the entity (segment)"
    assert what in str(read.broken["detectors/wrong"])


def test_the_tables_belong_to_the_version(tmp_path: Path) -> None:
    versions = {
        catalog(tmp_path, **{"detectors/one.py": DETECTOR.format(tables=tables)}).detector("one").version
        for tables in ("[]", '["segments"]')
    }
    assert len(versions) == 2
