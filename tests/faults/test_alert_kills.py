"""Whatever is killed between a finding and people, no alert is lost, and a repeated message has the same id."""

import contextlib
import random
import re
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.rig.broker import Broker
from tests.rig.installation import Installation
from tests.rig.mail_server import LOST, OK
from tests.rig.sink_servers import SinkServer, emptied
from tests.rig.sink_servers import running as running_server
from tests.rig.waiting import await_that
from tests.rig.web_receiver import DROPS, HANGS, WebReceiver, web_receiver
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Finding, finding_id
from tocsin.declare.model.names import INDEXER, NOTIFIER
from tocsin.declare.receivers import read_blocks

DETECTORS, ALERTS_A_ROUND, SEED, ACCEPTED = 30, 4, 7, 202
WEBHOOK = {"webhook fails": 500, "webhook hangs": HANGS, "webhook drops": DROPS}
VICTIMS = (INDEXER, NOTIFIER, "both", "mail server", "mail server drops", *WEBHOOK, "alerts DB")
_USER = re.compile(r"user-\d+-\d+")


@dataclass(frozen=True)
class Scene:
    """An installation of thirty detectors, whose alerts go to their owner by mail and to a webhook.

    `server` is of its alerts DB; None for SQLite.
    """

    one: Installation
    receiver: WebReceiver
    server: SinkServer | None


@pytest.fixture(params=["sqlite", "postgres"])
def scene(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        installation = stack.enter_context(Installation(tmp_path / f"kills-{request.param}", broker))
        receiver = stack.enter_context(web_receiver())
        server = stack.enter_context(running_server("postgres")) if request.param == "postgres" else None
        if server is not None:
            (file := tmp_path / "alerts-db").write_text(emptied(server.address))
            alerts = installation.settings.alerts.model_copy(update={"database_file": file})
            installation.settings = installation.settings.model_copy(update={"alerts": alerts})
        project = installation.settings.project
        for number in range(DETECTORS):
            shutil.copy(project / "detectors" / "failed_logins.py", project / "detectors" / f"logins_{number}.py")
        (project / "routes.toml").write_text('[[route]]\nto = ["owner", "webhook:all"]\n')
        (secret := tmp_path / "secret").write_text("s" * 32)
        secret.chmod(0o600)
        block = {"webhook": {"all": {"url": receiver.url, "secret_file": str(secret)}}}
        installation.settings = installation.settings.model_copy(update={"receivers": read_blocks(block)})
        installation.catalog = read_catalog(project)
        installation.make_topics()
        installation.start(INDEXER, NOTIFIER)
        installation.await_ready(INDEXER, NOTIFIER)
        yield Scene(installation, receiver, server)


def _emit(one: Installation, number: int) -> set[str]:
    """Write urgent findings of different detectors, each about a user of its own; returns the users."""
    now, producer, users = datetime.now(UTC), Producer(one.settings.kafka.for_librdkafka()), set()
    start = now - timedelta(seconds=now.second % 10, microseconds=now.microsecond)
    for place in range(ALERTS_A_ROUND):
        name, user = f"logins_{(number * ALERTS_A_ROUND + place) % DETECTORS}", f"user-{number}-{place}"
        end, entity = start + timedelta(seconds=10), {"user_id": user}
        finding = Finding(
            finding_id=finding_id(name, entity, start, end), detector=name, entity=entity,
            version=one.catalog.detector(name).version, window_start=start, window_end=end, level="urgent",
            score=150, limit=100, event_time_max=now,
        )  # fmt: skip
        producer.produce(one.settings.names.findings, finding.to_json(), finding.finding_id.encode())
        users.add(user)
    assert producer.flush(10) == 0
    return users


def _break(scene: Scene, victim: str, seconds: float) -> None:
    """Break something for some time, and mend it."""
    one = scene.one
    match victim:
        case "mail server":
            one.sink.stop()
            time.sleep(seconds)
            one.sink.start()
        case "mail server drops":
            one.sink.answer_mail = lambda _: LOST
            time.sleep(seconds)
            one.sink.answer_mail = lambda _: OK
        case _ if victim in WEBHOOK:
            scene.receiver.status = lambda _: WEBHOOK[victim]
            time.sleep(seconds)
            scene.receiver.status = lambda _: ACCEPTED
        case "alerts DB" if scene.server is not None:
            scene.server.kill()
            time.sleep(seconds)
            scene.server.start()
        case "alerts DB":
            file = one.settings.alerts_database.removeprefix("sqlite:///")
            with contextlib.closing(sqlite3.connect(file, timeout=30, isolation_level=None)) as holder:
                holder.execute("BEGIN EXCLUSIVE")
                time.sleep(seconds)
        case _:
            jobs = (INDEXER, NOTIFIER) if victim == "both" else (victim,)
            for job in jobs:
                one.kill(job)
            for job in jobs:
                one.await_end(job)
            one.start(*jobs)


def _mails(one: Installation) -> list[tuple[str, frozenset[str]]]:
    """The identity of each mail, and the users that it names."""
    found = []
    for mail in list(one.sink.mails):
        plain = (part.get_payload(decode=True) for part in mail.walk() if part.get_content_type() == "text/plain")
        text = b" ".join(part for part in plain if isinstance(part, bytes)).decode()
        found.append((str(mail["Message-ID"]), frozenset(_USER.findall(text))))
    return found


def _posts(receiver: WebReceiver, *statuses: int) -> list[tuple[str, frozenset[str]]]:
    """The same of what the webhook has got, and answered one of `statuses`."""
    got = [taken for taken in list(receiver.taken) if taken.status in statuses]
    return [(taken.headers["idempotency-key"], frozenset(_USER.findall(taken.body.decode()))) for taken in got]


@pytest.mark.long
def test_whatever_is_killed_on_the_way_no_alert_is_lost_and_only_the_same_message_is_repeated(
    scene: Scene, rounds: int
) -> None:
    one, receiver = scene.one, scene.receiver
    chance, users = random.Random(SEED), set[str]()
    order: list[str] = []
    for number in range(rounds or len(VICTIMS)):
        order = order or chance.sample(VICTIMS, len(VICTIMS))
        users |= _emit(one, number)
        time.sleep(chance.random())
        _break(scene, order.pop(), 0.5 + 2 * chance.random())

    def lost() -> set[str]:
        mails, posts = _mails(one), _posts(receiver, ACCEPTED)
        return {user for user in users if not all(any(user in named for _, named in got) for got in (mails, posts))}

    await_that(lambda: not lost(), 180, lambda: f"lost: {sorted(lost())}")
    for messages in (_mails(one), _posts(receiver, ACCEPTED, HANGS, DROPS)):
        named: dict[str, set[str]] = {}
        for identity, about in messages:
            for user in about:
                named.setdefault(user, set()).add(identity)
        twice = {user: ids for user, ids in named.items() if len(ids) > 1}
        assert twice == {}, "an alert came in two messages that a receiver cannot tell to be the same"
        repeated = sum(count - 1 for count in Counter(identity for identity, _ in messages).values())
        print(f"{len(users)} alerts, {len(messages)} messages, {repeated} of them repeated")
