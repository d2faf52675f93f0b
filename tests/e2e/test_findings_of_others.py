"""A detector that reads the findings of another: from lines to its findings, through kills of all jobs between them."""

import random
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.load import EMAIL, WINDOW_MICROS, line, now_micros
from tests.rig.observed import DETECT, INGEST
from tests.rig.waiting import await_that
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import INDEXER

READER = "detector:attacked"
HOUR_MICROS = 3_600_000_000
ATTACKED = '''"""Users who are attacked within an hour.

Catches: findings about many users. Misses: nothing else. When it fires, look first at: the users.
"""
from pyspark.sql import functions as F

from tocsin import Levels, detector


@detector(source="findings.failed_logins", entity="detector", window="1 hour", levels=Levels(email=1, urgent=1000),
          owner="security@example.com", runbook="https://example.com", stage="live")
def detect(events):
    return events.groupBy("window", "detector").agg(F.count("*").alias("score"))
'''


@pytest.fixture
def chain(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation whose four jobs run."""
    with Installation(tmp_path_factory.mktemp("chain"), broker) as installation:
        (installation.settings.project / "detectors" / "attacked.py").write_text(ATTACKED)
        installation.catalog = read_catalog(installation.settings.project)
        assert installation.catalog.broken == {}
        installation.make_topics()
        installation.start(INGEST, DETECT, INDEXER, READER)
        installation.await_ready(INGEST, DETECT, INDEXER, READER)
        yield installation


def send(chain: Installation, rounds: int, truth: dict[tuple[str, int], int]) -> None:
    """Send bursts of single users, about ten in a second, each within one window; count failures by user and window."""
    chance = random.Random(rounds)
    producer = Producer(chain.settings.kafka.for_librdkafka())
    for _ in range(rounds):
        now = now_micros()
        user, count = f"u{chance.randrange(12)}", chance.choice([EMAIL, EMAIL + 1, EMAIL + 20, 101 + EMAIL])
        for _ in range(count):
            producer.produce(chain.settings.names.raw("logins"), line(user, now), user)
        truth[user, now // WINDOW_MICROS] += count
        producer.poll(0)
        time.sleep(0.1)  # the pace of the load
    assert producer.flush(30) == 0


def expected(truth: dict[tuple[str, int], int]) -> dict[int, int]:
    """Count the levels that findings have reached, by the hour in which their windows begin."""
    hours: dict[int, int] = defaultdict(int)
    for (_, window), count in truth.items():
        hours[window * WINDOW_MICROS // HOUR_MICROS] += (count > EMAIL) + (count > 100)
    return {hour: levels for hour, levels in hours.items() if levels > 1}


def scores(chain: Installation) -> dict[int, int]:
    """Return the last score of the reader for each hour."""
    found: dict[int, int] = {}
    for one in chain.values(chain.settings.names.findings):
        if one.get("detector") == "attacked":
            hour = int(one["window_start"][11:13])
            found[hour] = max(found.get(hour, 0), int(one["score"]))
    return found


@pytest.mark.long
def test_each_level_of_each_finding_counts_once_through_kills(chain: Installation) -> None:
    truth: dict[tuple[str, int], int] = defaultdict(int)
    send(chain, 40, truth)
    chain.kill(INDEXER)
    chain.await_end(INDEXER)
    send(chain, 20, truth)
    chain.start(INDEXER)
    chain.await_ready(INDEXER)
    send(chain, 20, truth)
    chain.kill_between_flush_and_commit(DETECT)
    chain.await_end(DETECT)
    chain.start(DETECT)
    chain.await_ready(DETECT)
    send(chain, 20, truth)
    chain.kill(READER)
    chain.await_end(READER)
    chain.start(READER)
    chain.await_ready(READER)
    send(chain, 20, truth)
    wanted = {hour % 24: levels for hour, levels in expected(truth).items()}
    assert wanted
    await_that(lambda: scores(chain) == wanted, 90, lambda: (wanted, scores(chain)), every=1)
    topic = chain.settings.names.events("findings.failed_logins")
    await_that(lambda: any("tick" in one for one in chain.values(topic)))
    report = chain.report(READER)
    assert report is not None
    assert (report.rows_dropped_late, report.mode) == (0, "real-time")
