"""The whole of what is served: from Kafka, heartbeats, the alerts DB, ledgers and views."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from tests.rig.served import Served
from tests.unit.views.view_scene import NOON
from tests.unit.web.metrics.installation import COUNTED, DETECTOR, INGEST, Installation, kafka_of
from tocsin.declare.setting_blocks import MetricsSettings
from tocsin.platform import heartbeat
from tocsin.views.row_store import store_path
from tocsin.web.metrics.exporter import Scrape, exporter_api

ROOT = Path(__file__).resolve().parents[4]


def test_everything_is_served_and_described(installation: Installation) -> None:
    with kafka_of(installation):
        installation.publish(
            installation.report(INGEST, lag_records=4, counts=COUNTED), installation.report(DETECTOR, watermark=NOON)
        )
        served = Served(Scrape(installation.settings).collect())
    assert served.by("tocsin_job_lag_records", "job") == {INGEST: 4, DETECTOR: 0}
    assert served.get("tocsin_history_dates", source="logins", state="published") == 1
    assert served.get("tocsin_history_dates", source="logins", state="failed") == 0
    day = datetime(2026, 11, 19, tzinfo=UTC).timestamp()
    assert served.by("tocsin_history_newest_day_timestamp_seconds", "source")["logins"] == day
    assert served.get("tocsin_backfill_dates", detector="failed_logins", state="due") == 1
    assert served.get("tocsin_parity_findings", detector="failed_logins", result="same") == 5
    assert served.get("tocsin_parity_findings", detector="failed_logins", result="late") == 2
    assert served.get("tocsin_parity_findings", detector="failed_logins", result="unexplained") == 0
    assert served.get("tocsin_view_lag_seconds", view="word_counts") == 2.5
    assert served.get("tocsin_view_lag_records", view="word_counts") == 7
    assert served.get("tocsin_view_watermark_timestamp_seconds", view="word_counts") == NOON.timestamp()
    whats = ("kafka", "jobs", "alerts", "views", "days")
    assert served.by("tocsin_scrape_errors_total", "what") == dict.fromkeys(whats, 0)
    page = (ROOT / "docs" / "run" / "metrics.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(tocsin_\w+)", page, re.MULTILINE))
    totals = {f"{family.name}_total" if family.type == "counter" else family.name for family in served.families}
    assert described == totals


def test_without_kafka_the_heartbeats_of_this_machine_serve(installation: Installation) -> None:
    heartbeat.beat(installation.settings.state, installation.report(DETECTOR, lag_records=9))
    scrape = Scrape(installation.settings)
    began = time.monotonic()
    for number in (1, 2):
        served = Served(scrape.collect())
        assert served.by("tocsin_job_lag_records", "job") == {DETECTOR: 9}
        errors = served.by("tocsin_scrape_errors_total", "what")
        assert errors == {"kafka": number, "jobs": 0, "alerts": 0, "views": 0, "days": 0}
    assert time.monotonic() - began < 15, "Prometheus waits 10 s for each"


def lock(installation: Installation) -> Callable[[], None]:
    connection = sqlite3.connect(installation.settings.state / "alerts.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    return connection.close


def break_views(installation: Installation) -> Callable[[], None]:
    path = store_path(installation.settings, "word_counts")
    aside = path.rename(path.with_name("aside"))
    path.mkdir()

    def repair() -> None:
        path.rmdir()
        aside.rename(path)

    return repair


@pytest.mark.parametrize(
    ("what", "breakage", "gone", "name"),
    [
        ("alerts", lock, "tocsin_findings_total", "tocsin_view_lag_seconds"),
        ("views", break_views, "tocsin_view_lag_seconds", "tocsin_findings_total"),
    ],
)
def test_what_cannot_be_read_is_left_out_counted_and_comes_back(
    installation: Installation, what: str, breakage: Callable[[Installation], Callable[[], None]], gone: str, name: str
) -> None:
    with kafka_of(installation):
        installation.publish(installation.report(DETECTOR))
        scrape = Scrape(installation.settings)
        assert {gone, name} <= Served(scrape.collect()).names
        repair = breakage(installation)
        for number in (1, 2):
            served = Served(scrape.collect())
            assert gone not in served.names, "what was read before is not of now"
            assert {name, "tocsin_job_info"} <= served.names
            errors = served.by("tocsin_scrape_errors_total", "what")
            assert {one: count for one, count in errors.items() if count} == {what: number}
        repair()
        assert {gone, name} <= Served(scrape.collect()).names


# --- who is given the figures -----------------------------------------------------------------------------------------


def status(token: str | None, sent: str) -> int:
    """Ask for the figures as the server does."""
    nothing: Any = CollectorRegistry()
    (route,) = [one for one in exporter_api(nothing, token).routes if getattr(one, "path", "") == "/metrics"]
    answer: Response = route.endpoint(authorization=sent)  # type: ignore[attr-defined]
    return answer.status_code


def test_figures_are_given_to_who_sends_the_token() -> None:
    sent = {text: status("secret", text) for text in ("Bearer secret", "Bearer other", "secret", "Bearer sécret", "")}
    assert [text for text, code in sent.items() if code == 200] == ["Bearer secret"]
    assert set(sent.values()) == {200, 401}
    assert status(None, "") == 200


def test_the_exporter_is_not_open_to_others_without_a_token() -> None:
    tls: dict[str, Any] = {"certificate_file": Path("c"), "key_file": Path("k")}
    with pytest.raises(ValidationError, match="needs token_file"):
        MetricsSettings(host="0.0.0.0", **tls)
    assert MetricsSettings(host="0.0.0.0", token_file=Path("t"), **tls).host == "0.0.0.0"
