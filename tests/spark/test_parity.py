"""Reasons that are proved by recomputing windows of a sealed day, from one scene with one user for each reason."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.rig.samples.findings import finding
from tests.spark.sealing import DAY, ROOT, History, login
from tocsin.declare.blocks.spark_settings import SparkSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Finding
from tocsin.history.backfill.parity.comparison import Difference, DifferenceReason, ReportedFinding, Streamed, compare
from tocsin.history.backfill.parity.reasons import proved
from tocsin.history.backfill.spark.recompute import Doubt, recomputed
from tocsin.history.day_versions import DayVersion
from tocsin.history.places import begin

SPEC = read_catalog(ROOT).detector("failed_logins")
NOON = 12 * 3600.0
_NUMBERS = iter(range(10**6))


def failures(user: str, count: int, *, late: float = 0.0, at: float = NOON, **columns: Any) -> Iterator[dict[str, Any]]:
    """`count` failed logins of the window that begins `at` seconds of the day, appended `late` seconds after."""
    for _ in range(count):
        moment = begin(DAY) + timedelta(seconds=at + 1)
        known = {"user_id": user, "ingested_at": moment + timedelta(seconds=late)}
        yield login(next(_NUMBERS), at + 1, **(known | columns))


def found(user: str, score: float, at: float = NOON) -> Finding:
    return finding(score, user=user, at=begin(DAY) + timedelta(seconds=at), version=SPEC.version)


@pytest.fixture(scope="module")
def quarantined() -> list[dict[str, Any]]:
    return list(failures("trent", 5)) + list(failures("peggy", 1))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    return History(tmp_path_factory.mktemp("history"))


@pytest.fixture(scope="module")
def day(spark: SparkSession, history: History, quarantined: list[dict[str, Any]]) -> DayVersion:
    history.land(
        [
            *failures("mallory", 60),
            *failures("mallory", 20, late=11),
            *failures("mallory", 60, at=NOON + 600),  # the same user at another time
            *failures("eve", 40),
            *failures("eve", 20, late=60),
            *failures("walter", 60),
            *failures("walter", 10, late=15),  # when the watermark had not moved yet
            *failures("walter", 10, late=200),
            *failures("oscar", 60),
            *failures("oscar", 10, late=100),  # in the batch after, which drops by the watermark before
            *failures("oscar", 10, late=200),
            *failures("trent", 60),
            *failures("peggy", 58),
            *failures("peggy", 1, late=30),
            *quarantined,
            *failures("victor", 80),
            *failures("sybil", 75),
            *failures("sybil", 5, late=60),
            *failures("judy", 60, late=10**6, raw_topic="file:00"),
        ]
    )
    return history.seal(spark).version


def answers(
    spark: SparkSession, history: History, day: DayVersion, quarantined: list[dict[str, Any]], **stream: float | None
) -> dict[str, Difference]:
    """The difference of each user whose windows the stream gave this score, and the backfill all events."""
    whole = dict(mallory=80, eve=60, walter=80, oscar=80, trent=65, peggy=60, victor=80, sybil=80, judy=60)
    batch = [found(user, whole[user]) for user in stream]
    ours = [found(user, score) for user, score in stream.items() if score is not None]
    compared = compare([Streamed(one, ReportedFinding.of(one)) for one in ours], batch)
    doubt = Doubt(
        spec=SPEC,
        source=history.source,
        days={DAY: day},
        differences=compared.differences,
        quarantined=[(one["raw_topic"], one["raw_partition"], one["raw_offset"]) for one in quarantined],
    )
    minutes = SparkSettings(trigger_seconds=60)  # the batches of the stream, whose watermark moves at their ends
    recomputing = recomputed(spark, history.settings.model_copy(update={"spark": minutes}), doubt)
    return {one.entity["user_id"]: one for one in proved(compared.differences, *recomputing)}


def test_each_reason_is_claimed_where_leaving_out_its_events_gives_what_the_stream_found(
    spark: SparkSession, history: History, day: DayVersion, quarantined: list[dict[str, Any]]
) -> None:
    told = answers(
        spark, history, day, quarantined,
        mallory=60, eve=None, walter=70, oscar=70, trent=60, peggy=58, victor=70, sybil=76, judy=None,
    )  # fmt: skip
    assert {user: one.reason for user, one in told.items()} == {
        "mallory": DifferenceReason.LATE,
        "eve": DifferenceReason.LATE,
        "walter": DifferenceReason.LATE,
        "oscar": DifferenceReason.LATE,
        "trent": DifferenceReason.QUARANTINED,
        "peggy": DifferenceReason.QUARANTINED,  # and late
        "victor": DifferenceReason.UNEXPLAINED,
        "sybil": DifferenceReason.UNEXPLAINED,  # late events are there, but do not give what the stream found
        "judy": DifferenceReason.MISSING,
    }
    assert "more than 10 s late" in told["mallory"].why
    assert "more than 72 s late" in told["walter"].why
    assert "more than 132 s late" in told["oscar"].why
    assert "and late ones" in told["peggy"].why
    assert "email 75 or email 80; the stream found email 76" in told["sybil"].why


def test_a_backfill_that_history_no_longer_gives_is_told(
    spark: SparkSession, history: History, day: DayVersion
) -> None:
    compared = compare([], [found("victor", 81)])
    doubt = Doubt(spec=SPEC, source=history.source, days={DAY: day}, differences=compared.differences)
    (one,) = proved(compared.differences, *recomputed(spark, history.settings, doubt))
    assert (one.reason, "finds email 80 in history now" in one.why) == (DifferenceReason.UNEXPLAINED, True)
