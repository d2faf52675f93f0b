"""A stack under Airflow, and what people see of it."""

import contextlib
import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psutil
import psycopg
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from sqlalchemy import func, select

from bench.landed import LandingWriter, arrow_schema
from tests.rig.airflow_api import Api
from tests.rig.samples.backfills import finding
from tests.rig.stack import Stack
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import FindingFilter, list_findings, open_store
from tocsin.alerts.store.schema import notifications
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.finding import Origin
from tocsin.declare.model.job_report import JobState
from tocsin.declare.model.source import columns_of
from tocsin.declare.source_file import read_source
from tocsin.history.landing_ledger import Entry, ImportedFile, record
from tocsin.history.places import IMPORTED, Places, begin
from tocsin.platform.heartbeat import read_beat
from tocsin.platform.kafka.reader import Offsets, TopicReader
from tocsin.supervise.job_states import memory_of

DETECTOR = "detector:failed_logins"
COMPONENTS = ["airflow-api-server", "airflow-dag-processor", "airflow-scheduler", "airflow-triggerer"]
JOBS = [DETECTOR, "engine:live-1", "indexer", "ingest:logins", "notifier", "web"]
BACKFILL = "backfill__failed_logins"
HISTORY = "history__logins"
# Days of which the gates refuse the first, let the second pass, and hold the findings of the third.
REFUSED, GOOD, HELD = (datetime.now(UTC).date() - timedelta(days=days) for days in (4, 3, 2))
# From what happens until the supervisor has acted: an event of the watcher takes a few seconds, cron a minute.
SECONDS = 45
BY_EVENT = 30
BATCH_SECONDS = 240
OWNER = "fraud@example.com"


class Running:
    """A stack with Airflow, and what people see of it."""

    def __init__(self, stack: Stack) -> None:
        about = json.loads((stack.state / "stack.json").read_text())
        self.stack, self.mail_url, self.url = stack, about["mail_url"], about["airflow_url"]
        self.passwords = stack.state / "airflow" / "passwords.json"
        self.admin = Api(self.url, self.passwords, "admin")
        self.logins: dict[str, Any] = {}  # what the browser of each user keeps

    def ask_metadata(self, statement: str, *values: Any) -> Any:
        """What Airflow's metadata in PostgreSQL answers first; None when a statement answers nothing."""
        address = self.stack.settings.airflow.database(self.passwords.parent).replace("+psycopg2", "")
        with psycopg.connect(address, autocommit=True) as connection:
            done = connection.execute(statement, values)
            return done.fetchone() if done.description else None

    def pids(self, *without: str) -> dict[str, int | None]:
        return {job: self.stack.pid(job) for job in JOBS if job not in without}

    def declared_version(self) -> str:
        return read_catalog(self.stack.project).detector("failed_logins").version

    def await_new(self, job: str, old: int | None, seconds: float = SECONDS) -> float:
        """Wait for another process of `job`; how long it took."""
        began = time.monotonic()
        await_that(lambda: self.stack.pid(job) not in (None, old), seconds)
        return time.monotonic() - began

    def mails_to(self, owner: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.mail_url}/mails.json", timeout=60) as answer:
            mails = json.load(answer)
        return [one for one in mails if owner in json.dumps(one["to"]) and one["subject"].startswith("[tocsin]")]

    def subjects_to(self, owner: str) -> list[str]:
        return [mail["subject"] for mail in self.mails_to(owner)]

    def notices_in_outbox(self) -> int:
        """How many mails about jobs and runs the notifier has taken, and could not send yet."""
        with contextlib.closing(open_store(self.stack.settings)) as store, store.read() as connection:
            unsent = select(func.count()).where(notifications.c.kind == "notice", notifications.c.state == "leaving")
            return int(connection.execute(unsent).scalar_one())

    def await_look(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait for what a look of the supervisor leads to; ask for looks by hand, so that no minute is waited for."""

        def came() -> bool:
            if condition():
                return True
            if not {"queued", "running"} & set(self.admin.runs("supervisor").values()):
                self.admin.trigger("supervisor")
            return False

        await_that(came, seconds, every=1)

    def kill_task(self, dag: str, task: str) -> str:
        """Start a run of `dag`, kill the process of `task`, which has one try alone; the id of the run."""

        ask, where = self.ask_metadata, "WHERE run_id = %s AND task_id = %s"
        # A scheduled run, of which there is one for each new DAG, is alone as well.
        await_that(lambda: not {"queued", "running"} & {*self.admin.runs(dag).values()}, BATCH_SECONDS, every=1)
        ask("UPDATE slot_pool SET slots = 0 WHERE pool = 'backfill'")
        run = self.admin.trigger(dag)
        await_that(lambda: self.admin.states(dag, run).get(task) == "scheduled", SECONDS)
        ask(f"UPDATE task_instance SET max_tries = 0 {where}", run, task)  # or the second one comes after five minutes
        ask("UPDATE slot_pool SET slots = 1 WHERE pool = 'backfill'")
        is_running = f"SELECT state = 'running' AND pid IS NOT NULL FROM task_instance {where}"
        await_that(lambda: ask(is_running, run, task)[0], SECONDS)
        os.kill(ask(f"SELECT pid FROM task_instance {where}", run, task)[0], signal.SIGKILL)
        return run

    def condition(self, job: str) -> str:
        """How `job` fares in the eyes of supervision."""
        history = json.loads(memory_of(self.stack.state, "jobs").read_text())
        return str(history["jobs"].get(job, {}).get("condition"))

    def burst(self, user: str) -> None:
        """60 failed logins of `user`, appended when this returns."""
        done = self.stack.tocsin("send", "--burst", f"user={user},n=60")
        assert done.returncode == 0, done.stderr

    def has_found(self, user: str) -> bool:
        with contextlib.closing(open_store(self.stack.settings)) as store:
            return bool(list_findings(store, FindingFilter(entity=user)))

    def ends(self) -> Offsets:
        settings = self.stack.settings
        with TopicReader(settings, "tests", settings.names.events("logins")) as topic:
            return topic.bounds()[1]

    def committed(self, partitions: Iterable[int]) -> Offsets:
        """How far the detector says that it has come."""
        settings = self.stack.settings
        group = {"group.id": settings.names.group(DETECTOR)}
        consumer = Consumer(settings.kafka.for_librdkafka() | group)
        places = [TopicPartition(settings.names.events("logins"), partition) for partition in partitions]
        try:
            return {place.partition: place.offset for place in consumer.committed(places, timeout=60)}
        finally:
            consumer.close()

    @contextlib.contextmanager
    def without_mail(self) -> Iterator[None]:
        """The mail server answers nobody inside the block."""
        pid = self.stack.pid("mail")
        assert pid is not None
        server = psutil.Process(pid)
        server.suspend()
        try:
            yield
        finally:
            server.resume()

    def judge(self, suite: str, name: str, *, column: str = "", max_value: int) -> None:
        """Declare a suite of one critical rule: an upper bound of a column, or of the number of rows."""
        kind = "expect_column_values_to_be_between" if column else "expect_table_row_count_to_be_between"
        kwargs = ({"column": column} if column else {}) | {"max_value": max_value}
        rule = {"type": kind, "kwargs": kwargs, "severity": "critical", "meta": {"name": name}}
        file = self.stack.project / "expectations" / f"{suite}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"name": suite, "expectations": [rule]}))

    def land_the_past(self, days: Mapping[date, Iterable[str]]) -> None:
        """Land a burst of 60 failed logins for each of the users of each day, as an import does."""
        source = read_source(self.stack.project / "sources" / "logins.toml")
        places, columns = Places.of(self.stack.settings, source.name), columns_of(source)
        known = {"raw_topic": "file:past", "raw_partition": 0, "source": source.name, "schema_version": 1}
        known |= {"ip_address": "203.0.113.7", "action": "login failed"}
        bursts = [(begin(day) + timedelta(hours=12), user) for day, users in days.items() for user in users]
        times = [(start + timedelta(seconds=number % 10), user) for start, user in bursts for number in range(60)]
        rows = [
            known | {"user_id": user, "event_time": at, "ingested_at": at, "raw_offset": offset}
            for offset, (at, user) in enumerate(times)
        ]
        writer = LandingWriter(places, f"{IMPORTED}past", source)
        writer.write(pa.Table.from_pylist(rows, arrow_schema(columns)), partition=-1)
        now, file = datetime.now(UTC), ImportedFile(name="past.log", sha256="00", rows=len(rows), refused=0)
        about = {"run": writer.run, "began": now, "ended": now, "columns": columns, "imported": file}
        record(places, Entry(**about, files=tuple(writer.files)))

    def find_in_the_stream(self, user: str, day: date) -> None:
        """Write what the job would have found at noon of `day`: so no reason has to be proved with Spark."""
        one = finding(user, day, 12 * 3600).model_copy(update={"origin": Origin.STREAM, "run_id": ""})
        producer = Producer(self.stack.settings.kafka.for_librdkafka())
        producer.produce(self.stack.settings.names.findings, one.to_json(), one.finding_id.encode())
        assert producer.flush(30) == 0
        await_that(lambda: self.has_found(user), SECONDS)

    def night(self) -> str:
        """Run what a night does; the id of the run that has failed, which may be that of an hour."""
        self.admin.trigger(HISTORY)
        await_that(lambda: not {"queued", "running"} & {*self.admin.runs(HISTORY).values()}, 2 * BATCH_SECONDS, every=1)
        (run,) = [run for run, state in self.admin.runs(HISTORY).items() if state == "failed"]
        return run

    def reported(self, mail: dict[str, Any], subject: str, day: date, rule: str) -> str:
        """The address in `mail` of the report on `day`, whose page tells a viewer of `rule`."""
        (address,) = set(re.findall(rf'"({self.url}/tocsin/quality/{subject}/{day}/[^"]+)"', mail["html"]))
        assert rule in Api(self.url, self.passwords, "viewer").page(address.removeprefix(self.url))
        return str(address)

    def await_end(self, dag: str, run: str, state: str) -> None:
        """Wait for the end of a run that starts Spark, and see how it ended."""
        await_that(lambda: self.admin.runs(dag)[run] in ("success", "failed"), 2 * BATCH_SECONDS, every=1)
        assert self.admin.runs(dag)[run] == state, self.admin.states(dag, run)

    def backfilled(self, count: int) -> dict[str, str]:
        """The day of each run of a Backfill, once there are `count`."""

        def found() -> dict[str, str]:
            runs = self.admin.call("GET", f"/api/v2/dags/{BACKFILL}/dagRuns?run_type=backfill")["dag_runs"]
            return {run["dag_run_id"]: run["partition_key"] for run in runs}

        await_that(lambda: len(found()) == count, SECONDS)
        return found()

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.admin.dag(HISTORY) is not None
        return False

    def await_running(self) -> None:
        def runs() -> bool:
            beat = read_beat(self.stack.state, DETECTOR)
            return beat is not None and beat.report.state is JobState.RUNNING

        await_that(runs, BATCH_SECONDS)

    def await_version(self, version: str) -> None:
        await_that(lambda: self.stack.report(DETECTOR).version == version, 2 * SECONDS)

    def declare(self, name: str, old: str = "", new: str = "") -> None:
        """One more detector, whose owner is another."""
        folder = self.stack.project / "detectors"
        text = (folder / "failed_logins.py").read_text()
        assert old in text
        (folder / f"{name}.py").write_text(text.replace(old, new).replace("security@example.com", OWNER))
