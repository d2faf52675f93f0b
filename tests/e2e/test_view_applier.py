"""The applier as it is run, on a real broker and a real Redis, killed again and again while rows come."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis

from bench.rescale import Plan, Rescale, declare
from tests.rig.broker import Broker
from tests.rig.samples.words import declare_words
from tests.rig.sink_servers import running
from tests.rig.waiting import await_that, patient
from tocsin.declare.blocks.view_settings import ViewSettings
from tocsin.declare.blocks.web_settings import WebSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.sizes import EVENT_BYTES
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import free_ports
from tocsin.platform.kafka.record_writer import RecordWriter
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.supervise.runners.job_command import job_environment
from tocsin.views.rest.view_api import Rows
from tocsin.views.view_row import ViewRow

ROWS, KEYS, SECONDS = 20_000, 200, 60.0


@pytest.fixture
def settings(tmp_path: Path, broker: Broker) -> Settings:
    declare_words(tmp_path, "words_seen", window=None, sink="redis")
    kafka = broker.kafka.model_copy(update={"topic_prefix": f"{tmp_path.name}."})
    found = Settings(project=tmp_path, state=tmp_path / "state", kafka=kafka)
    ensure_topics(found, read_catalog(tmp_path))
    return found


class Written:
    """A compute job that is played: writes versions of rows, and remembers the last of each."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.last = settings, dict[str, int]()

    def write(self) -> None:
        dice = random.Random(7)
        with RecordWriter(self.settings, EVENT_BYTES) as writer:
            for number in range(ROWS):
                word = f"w{dice.randrange(KEYS)}"
                row = ViewRow(key={"word": word}, values={"count": number}, build="a")
                for _ in range(1 + (dice.random() < 0.1)):  # some are written twice
                    writer.write(self.settings.names.view("words_seen"), row.model_dump_json(), row.identity)
                self.last[word] = number
                if number % 200 == 0:
                    time.sleep(0.05)


def start(settings: Settings, *job: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tocsin.job", *job], env=job_environment(settings, Path()))


def has_loaded(client: redis.Redis) -> bool:
    """Whether Redis has read what it had stored: it takes connections before."""
    try:
        return bool(client.ping())
    except redis.BusyLoadingError:
        return False


@pytest.mark.long
def test_the_sink_is_what_was_written_after_kills_of_both(settings: Settings) -> None:
    with running("redis") as server:
        (port,) = free_ports(1)
        views, web = ViewSettings(redis=server.address), WebSettings(port=port)
        settings = settings.model_copy(update={"views": views, "web": web})
        rows = Written(settings)
        writing = threading.Thread(target=rows.write)
        writing.start()
        client = redis.Redis.from_url(server.address, decode_responses=True)
        job = start(settings, "view", "words_seen")
        api = start(settings, "web")
        try:
            for kills in range(6):
                time.sleep(1.0)
                if kills % 3 == 2:
                    server.kill()
                    time.sleep(0.5)
                    server.start()
                    await_that(lambda: has_loaded(client), SECONDS)
                elif kills == 4:
                    client.flushall()
                else:
                    job.kill()
                    job.wait()
                    job = start(settings, "view", "words_seen")
            writing.join()

            def sink() -> dict[str, int]:
                keys: Any = client.keys("words_seen:*")
                counts: Any = {key.partition(":")[2]: client.hget(key, "count") for key in keys}
                return {word: int(count or -1) for word, count in counts.items()}

            await_that(lambda: sink() == rows.last, SECONDS)
            token = (settings.state / "web.token").read_text().strip()
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/views/words_seen?limit=1000", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=patient(10)) as answer:
                told = Rows.model_validate_json(answer.read())
            assert {row.name: row.values["count"] for row in told.rows} == rows.last
        finally:
            for process in (job, api):
                process.terminate()
                process.wait(patient(SECONDS))
            writing.join()
            client.close()


def test_readers_that_share_a_view_lose_nothing_and_show_nothing_twice(broker: Broker, tmp_path: Path) -> None:
    settings = declare(tmp_path, broker.kafka, f"{tmp_path.name}.")
    with Rescale(settings, Plan(records=9000, rate=1500, kills=True)) as run:
        found = run.run()
    assert (found.records, found.lost, found.shown_twice) == (9000, 0, 0)
    assert [(step.action, step.jobs) for step in found.steps] == [("start", 1), ("add", 2), ("kill", 1)]
    assert sum(step.records for step in found.steps) == 9000
    assert found.steps[1].partitions_moved > 0
