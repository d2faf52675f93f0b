"""A broker that asks for logins over TLS: each role does its work with the rights of its own, and no more.

The tests share one broker and go on from each other, in this order.
"""

import base64
import contextlib
import itertools
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them, but not in mypy's sense
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.rig.compute_job import Events
from tests.rig.detect_job import text
from tests.rig.landing import land
from tests.rig.samples.project import copy_project
from tests.rig.secured_broker import SecuredBroker, allow_scram
from tests.rig.waiting import await_that, awaited, patient
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.job_report import JobState
from tocsin.declare.setting_blocks import OPERATOR
from tocsin.declare.settings import Settings, load_settings
from tocsin.dev.servers.ports import free_ports
from tocsin.ingest.producer import LineProducer
from tocsin.platform.kafka.reader import TopicReader
from tocsin.platform.kafka.reporter import read_reports
from tocsin.platform.kafka.topics import ensure_topics
from tocsin.platform.process_exit import ExitCode
from tocsin.setup.java import find_java
from tocsin.setup.paths import here
from tocsin.spark.tables.published_table import TableFolder
from tocsin.supervise.installed_jobs import job_launch
from tocsin.supervise.runners.runner import Labels

READY = 150.0
LINES = """title = "Lines"
owner = "platform@example.com"
format = "json"
key = "writer"
event_time = "at"
event_time_format = "iso8601"
lateness = "10 seconds"

[schema]
at = "timestamp"
writer = "string"
"""
SHOUTED = LINES.replace('"json"', '"events"').replace('event_time = "at"\nevent_time_format = "iso8601"\n', "")
DECLARED = {
    "sources/lines.toml": LINES,
    "sources/shouted.toml": SHOUTED.replace('at = "timestamp"\n', ""),
    "tables/writers.toml": """title = "Writers"
owner = "platform@example.com"
source = "lines"
key = "writer"

[schema]
writer = "string"
""",
    "flows/shout.py": '''"""Writers in capitals."""
from tocsin import flow
@flow(source="lines", to="shouted", owner="platform@example.com", stage="live")
def flow(events):
    return events.selectExpr("*", "upper(writer) AS W").drop("writer").withColumnRenamed("W", "writer")
''',
    "views/written.py": '''"""How much each writer has written."""
from pyspark.sql import functions as F
from tocsin import view
@view(source="shouted", key="writer", window=None, owner="platform@example.com", stage="live")
def view(events):
    return events.groupBy("writer").agg(F.count("*").alias("lines"))
''',
}
OTHERS = ("flow:shout", "compute:written", "view:written", "table:writers", "drain", "web", "exporter")


@dataclass
class Secured:
    """A project whose Kafka asks for logins, and processes of its jobs as the supervisor starts them."""

    folder: Path
    broker: SecuredBroker
    ports: dict[str, int]

    def configure(self, mechanism: str = "PLAIN", **changes: str) -> Settings:
        """Write the settings: a login for each role; `changes` say by role whose it is instead."""
        kafka = self.broker.kafka
        lines = [
            "[kafka]",
            f'bootstrap_servers = "{kafka.bootstrap_servers}"',
            'security_protocol = "SASL_SSL"',
            f'sasl_mechanism = "{mechanism}"',
            'sasl_username = "tocsin-operator"',
            f'sasl_password_file = "{self.broker.secured.password_file("tocsin-operator")}"',
            f'ssl_ca_file = "{kafka.ssl_ca_file}"',
            'topic_prefix = "acme."',
        ]
        for role in KINDS:
            user = f"tocsin-{changes.get(role, role)}"
            lines += [f"[kafka.logins.{role}]", f'username = "{user}"']
            lines += [f'password_file = "{self.broker.secured.password_file(user)}"']
        lines += ["[spark]", "trigger_seconds = 5", "ingest_trigger_seconds = 5", "[engine]", "enabled = false"]
        for block, port in self.ports.items():
            lines += [f"[{block}]", f"port = {port}"]
            lines += {"drain": ['credentials_file = "senders"'], "metrics": ["enabled = true"]}.get(block, [])
        (self.folder / "tocsin.toml").write_text("\n".join(lines))
        return load_settings(self.folder)

    def allow(self) -> None:
        """Run the commands of the page, with a `kafka-acls.sh` of the test."""
        tool = self.folder.parent / "bin" / "kafka-acls.sh"
        tool.parent.mkdir()
        tool.write_text('#!/bin/sh\nprintf "%s\\t" "$@"; echo\n')
        tool.chmod(0o755)
        (script,) = re.findall(r"```sh\n(.*?)```", (here().root / "docs/run/kafka-security.md").read_text(), re.DOTALL)
        path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
        run = ["sh", "-euc", script.replace('p=""', 'p="acme."')]
        calls = subprocess.run(run, env={"PATH": path}, capture_output=True, text=True, check=True).stdout
        rules = [rule for call in calls.splitlines() for rule in _rules(call.split("\t")[:-1])]
        admin = AdminClient(self.broker.secured.client.for_librdkafka())
        for written in admin.create_acls(rules, request_timeout=patient(15)).values():
            written.result()

    @contextlib.contextmanager
    def running(self, settings: Settings, *jobs: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
        started = {}
        for job in jobs:
            launch = job_launch(settings, Labels("test", job, "x"), find_java().home)
            launch.log.parent.mkdir(parents=True, exist_ok=True)
            with launch.log.open("ab") as log:
                started[job] = subprocess.Popen(
                    launch.command, env=launch.environment, cwd=launch.directory, stdout=log, stderr=log
                )
        try:
            yield started
        finally:
            for process in started.values():
                process.terminate()
            for process in started.values():
                process.wait(30)

    def ask(self, block: str, path: str, authorization: str = "", body: bytes | None = None) -> str:
        """The answer of one of the servers; nothing while it gives none."""
        url = f"http://127.0.0.1:{self.ports[block]}/{path}"
        with contextlib.suppress(OSError):
            asked = urllib.request.Request(url, body, {"Authorization": authorization, "Content-Type": "text/plain"})
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return str(answer.read().decode())
        return ""

    def said(self, settings: Settings, job: str) -> str:
        return settings.log(job).read_text()[-4000:]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    broker = SecuredBroker(folder / "broker", tuple(f"tocsin-{role}" for role in (*KINDS, OPERATOR)))
    copy_project(folder / "project")
    ports = dict(zip(("drain", "web", "metrics"), free_ports(3), strict=True))
    (folder / "project" / "senders").write_text("lines:secret\n")
    (folder / "project" / "senders").chmod(0o600)
    try:
        broker.start()
        secured = Secured(folder / "project", broker, ports)
        secured.allow()
        ensure_topics(_as_operator(secured.configure()), read_catalog(secured.folder))
        yield secured
    finally:
        broker.stop()


def _as_operator(settings: Settings) -> Settings:
    return settings.model_copy(update={"kafka": settings.kafka.for_role("operator")})


def _rules(words: list[str]) -> Iterator[AclBinding]:
    """Read one call of `kafka-acls.sh`."""
    given = list(itertools.pairwise(words))
    (principal,) = (value for option, value in given if option == "--allow-principal")
    operations = [AclOperation[value.upper()] for option, value in given if option == "--operation"]
    assert ("--resource-pattern-type", "prefixed") in given
    kinds = {"--topic": ResourceType.TOPIC, "--group": ResourceType.GROUP}
    for option, name in given:
        for operation in operations if option in kinds else ():
            pattern, allow = ResourcePatternType.PREFIXED, AclPermissionType.ALLOW
            yield AclBinding(kinds[option], name, pattern, principal, "*", operation, allow)


def test_a_burst_becomes_a_finding_with_a_login_for_each_role(secured: Secured) -> None:
    settings = secured.configure()
    catalog = read_catalog(settings.project)
    operator = _as_operator(settings)
    jobs = ("ingest:logins", "detector:failed_logins", "indexer", "notifier")
    with secured.running(settings, *jobs) as processes:

        def ready() -> bool:
            with contextlib.suppress(TransientError):
                reports = read_reports(operator)
                streams = all(job in reports and reports[job].state is JobState.RUNNING for job in jobs[:2])
                return streams and all(job in reports for job in jobs)
            return False

        await_that(lambda: ready() or any(one.poll() is not None for one in processes.values()), READY)
        assert ready(), "\n\n".join(secured.said(settings, job) for job in jobs)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        line = f'{{"timestamp":"{now}","user_id":"u1","ip_address":"192.0.2.1","action":"login failed"}}'
        with LineProducer(operator, catalog.source("logins")) as producer:
            for _ in range(120):
                producer.send(line.encode())
        with TopicReader(operator, "reports", settings.names.findings) as findings:
            found = awaited(lambda: any(findings.bounds()[1].values()), 60)
        assert found, "\n\n".join(secured.said(settings, job) for job in jobs)


@pytest.mark.long
def test_the_other_kinds_do_their_work_with_their_logins(secured: Secured) -> None:
    """A flow, a view with its applier and server, a table, the drain and the exporter; landing besides.

    They log in by SCRAM, from Java as from librdkafka; the tests before did so by PLAIN.
    """
    for path, text_of_file in DECLARED.items():
        (secured.folder / path).parent.mkdir(exist_ok=True)
        (secured.folder / path).write_text(text_of_file)
    allow_scram(secured.broker.secured)
    settings = secured.configure("SCRAM-SHA-512")
    operator = _as_operator(settings)
    ensure_topics(operator, read_catalog(settings.project))
    events, now = Events(operator, "lines"), datetime.now(UTC)
    for number in range(4):  # the third twice
        events.write(0, now, writer="ann", at=text(now), number=number)
    events.flush()
    line = f'{{"at": "{text(now)}", "writer": "bob"}}'.encode()
    with secured.running(settings, *OTHERS):
        with TopicReader(operator, "reports", settings.names.raw("lines")) as raw:
            sender = f"Basic {base64.b64encode(b'lines:secret').decode()}"

            def drained() -> bool:
                return any(raw.bounds()[1].values()) or bool(secured.ask("drain", "events/lines", sender, line))

            await_that(drained, READY, lambda: secured.said(settings, "drain"))
        token = settings.state / "web.token"

        def row() -> str:
            return (
                secured.ask("web", "views/written/ANN", f"Bearer {token.read_text().strip()}") if token.exists() else ""
            )

        await_that(
            lambda: '"lines":4' in row(), READY, lambda: [row(), *(secured.said(settings, j) for j in OTHERS[:3])]
        )
        (table,) = read_catalog(settings.project).tables.values()
        rows = TableFolder(settings, table)
        await_that(lambda: rows.current() is not None, READY, lambda: secured.said(settings, "table:writers"))
        shown = secured.ask("metrics", "metrics")
        assert all(f'job="{job}"' in shown for job in OTHERS[:4]), shown
    landed = land(settings, read_catalog(settings.project).source("lines"))
    assert sum(span.events for span in landed.partitions.values()) == 5


def test_a_job_without_a_right_ends_and_says_which(secured: Secured) -> None:
    settings = secured.configure(detector="drain")
    with secured.running(settings, "detector:failed_logins") as processes:
        assert processes["detector:failed_logins"].wait(patient(60)) == ExitCode.MISCONFIGURED
    said = secured.said(settings, "detector:failed_logins")
    assert "User:tocsin-drain lacks" in said
    assert "Write on topic acme.findings" in said
    assert "Read on topic acme.events.logins" in said
    assert "docs/run/kafka-security.md" in said


def test_a_wrong_password_ends_the_job(secured: Secured) -> None:
    settings = secured.configure()
    password = secured.broker.secured.password_file("tocsin-indexer")
    password.write_text("wrong\n")
    with secured.running(settings, "indexer") as processes:
        assert processes["indexer"].wait(patient(60)) == ExitCode.MISCONFIGURED
    assert "User:tocsin-indexer cannot log in" in secured.said(settings, "indexer")
