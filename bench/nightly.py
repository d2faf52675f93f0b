"""`python -m bench.nightly`: what the way of a day costs from its topic in Kafka to the published day.

The command `tocsin history seal` runs as in the night, in a process of its own: first on a day of `--rows` events, then
on none, so that the difference is what the events cost. The gate judges by the shipped suites.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer

from bench.figures import table
from bench.past import Past, day_before, events, happened, names
from bench.rig import Rig, Site, opened
from bench.spent import Spent, spent_by
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.source import tick_value
from tocsin.history.day_table import DayTable
from tocsin.setup.paths import here

SEAL = ("history", "seal", "--source", "logins")


def main() -> int:
    """Measure; 1 when a day does not hold the events that were written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the day (default a million)")
    parser.add_argument("--folder", type=Path, default=here().bench / "nightly", help="scratch; it is emptied")
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    print(f"{given.rows:,} rows, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.2f}")
    try:
        with opened(given.folder) as rig:
            is_true = measure(rig, given.rows, [SEAL])
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)
    return int(not is_true)


def measure(rig: Rig, rows: int, commands: Sequence[Sequence[str]]) -> bool:
    """Print what `commands` cost on a day of `rows` events, and on none; return whether the day is whole."""
    site, past = rig.site("nightly", {}), Past(day_before(datetime.now(UTC), 1), 1, rows)
    (suites := site.settings.project / "expectations").mkdir()
    for suite in (here().root / "expectations").glob("logins.[dr]*"):
        shutil.copy(suite, suites)
    fill(site, past)
    figures = []
    for what, count in (("a day", rows), ("nothing new", 0)):
        for words in commands:
            spent = run(site, words)
            million = f"{spent.cpu / count * 1e6:.2f}" if count else ""
            figures.append({"command": " ".join(words), "on": what, "exit code": spent.code, "seconds": spent.seconds,
                            "CPU-s": spent.cpu, "CPU-s per 1 M": million, "MB": spent.rss >> 20})  # fmt: skip
    print(
        table(figures), site.log.read_text()[-2000:] if any(one["exit code"] not in (0, 10) for one in figures) else ""
    )
    with DayTable(site.settings, read_catalog(site.settings.project).source("logins")) as days:
        found = {day: days.rows.version(day, name).facts.rows for day, name in days.published().items()}
    print({str(day): count for day, count in found.items()})
    return found == {past.first: rows}


def run(site: Site, words: Sequence[str]) -> Spent:
    """Run one of Tocsin's commands in the site."""
    kafka = site.settings.kafka
    environment = os.environ | {
        "TOCSIN_PROJECT": str(site.settings.project),
        "TOCSIN_STATE": str(site.settings.state),
        "TOCSIN_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "TOCSIN_KAFKA__TOPIC_PREFIX": kafka.topic_prefix,
    }
    return spent_by([sys.executable, "-m", "tocsin.cli", *words], site.log, environment, site.folder)


def fill(site: Site, past: Past) -> None:
    """Write the events of `past` to all partitions, then ticks."""
    source, people = read_catalog(site.settings.project).source("logins"), pa.array(names(past))
    producer = Producer(site.settings.kafka.for_librdkafka() | {"linger.ms": 50, "compression.type": "zstd"})
    topic = site.settings.names.events("logins")
    for day in past.dates:
        for some in happened(past, day):
            for number, row in enumerate(events(source, day, people, some).to_pylist()):
                value = json.dumps({n: _text(v) for n, v in row.items() if v is not None}, separators=(",", ":"))
                while True:
                    try:
                        producer.produce(topic, value.encode(), partition=number % source.partitions)
                        break
                    except BufferError:
                        producer.poll(0.1)
    for partition in range(source.partitions):
        producer.produce(topic, tick_value(datetime.now(UTC)), partition=partition)
    producer.flush()


def _text(value: object) -> object:
    return f"{value:%Y-%m-%dT%H:%M:%S.%fZ}" if isinstance(value, datetime) else value


if __name__ == "__main__":
    sys.exit(main())
