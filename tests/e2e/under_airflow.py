"""A stack under Airflow, and what people see of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psutil
from confluent_kafka import Consumer, TopicPartition

from tests.rig.airflow_api import Api
from tests.rig.stack import Stack
from tests.rig.waiting import await_that
from tocsin.kafka.reader import Offsets, TopicReader
from tocsin.supervision.job_states import memory_of

DETECTOR = "detector:failed_logins"
JOBS = [DETECTOR, "indexer", "ingest:logins", "notifier"]
BACKFILL = "backfill__failed_logins"
PAST = [datetime.now(UTC).date() - timedelta(days=days) for days in (3, 2)]
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

    def pids(self, *without: str) -> dict[str, int | None]:
        """The process of each job."""
        return {job: self.stack.pid(job) for job in JOBS if job not in without}

    def await_new(self, job: str, old: int | None, seconds: float = SECONDS) -> float:
        """Wait for another process of `job`; how long it took."""
        began = time.monotonic()
        await_that(lambda: self.stack.pid(job) not in (None, old), seconds)
        return time.monotonic() - began

    def mails_to(self, owner: str) -> list[dict[str, Any]]:
        """Mails of Airflow to `owner`."""
        with urllib.request.urlopen(f"{self.mail_url}/email", timeout=60) as answer:
            mails = json.load(answer)
        return [one for one in mails if owner in json.dumps(one["to"]) and one["subject"].startswith("[tocsin]")]

    def subjects_to(self, owner: str) -> list[str]:
        """Of the mails of Airflow to `owner`."""
        return [mail["subject"] for mail in self.mails_to(owner)]

    def await_look(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait for what a look of the supervisor leads to; ask for looks by hand, so that no minute is waited for."""

        def came() -> bool:
            if condition():
                return True
            if not {"queued", "running"} & set(self.admin.runs("supervisor").values()):
                self.admin.trigger("supervisor")
            return False

        await_that(came, seconds, every=2)

    def kill_task(self, dag: str, task: str) -> str:
        """Start a run of `dag`, kill the process of `task`, which has one try alone; the id of the run."""

        def ask(statement: str, *values: Any) -> Any:
            with contextlib.closing(sqlite3.connect(self.stack.state / "airflow" / "airflow.db", timeout=30)) as db, db:
                return db.execute(statement, values).fetchone()

        where = "WHERE run_id = ? AND task_id = ?"
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
        """Whether a finding about `user` is in the alerts DB."""
        done = self.stack.tocsin("findings", "--entity", user, "--json")
        assert done.returncode == 0, done.stderr
        return bool(json.loads(done.stdout))

    def ends(self) -> Offsets:
        """Where the events end now."""
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

    def bring_in_the_past(self, days: Iterable[date] = PAST) -> None:
        """Import a burst on each of `days`."""
        what = "ip_address: 203.0.113.7 | action: login failed"
        moments = [f"{day}T12:00:{second % 10:02}Z" for day in days for second in range(60)]
        lines = [f"user_id: mallory | timestamp: {moment} | {what}" for moment in moments]
        file = self.stack.state / "past.log"
        file.write_text("\n".join(lines) + "\n")
        done = self.stack.tocsin("history", "import", "--source", "logins", str(file))
        assert done.returncode == 0, done.stderr

    def await_end(self, dag: str, run: str, state: str) -> None:
        """Wait for the end of a run that starts Spark, and see how it ended."""
        await_that(lambda: self.admin.runs(dag)[run] in ("success", "failed"), 2 * BATCH_SECONDS)
        assert self.admin.runs(dag)[run] == state, self.admin.states(dag, run)

    def told_of_days(self) -> str:
        """What all runs have told that run days by themselves: a schedule (02:10, 04:00) may come before the test."""
        tasks = {"history__logins": "catch_up", BACKFILL: "run"}
        runs = [(dag, run) for dag in tasks for run in self.admin.runs(dag)]
        for dag, run in runs:
            self.await_end(dag, run, "success")
        done = [(dag, run) for dag, run in runs if self.admin.states(dag, run).get(tasks[dag]) == "success"]
        return "".join(self.admin.log(dag, run, tasks[dag]) for dag, run in done)

    def days(self) -> list[tuple[str, str]]:
        """The day and the state of each run of a Backfill, by day."""
        found = self.admin.call("GET", f"/api/v2/dags/{BACKFILL}/dagRuns?run_type=backfill")["dag_runs"]
        return sorted((run["partition_key"], run["state"]) for run in found)

    def await_days(self, count: int) -> None:
        """Wait until so many runs of Backfills have ended."""
        await_that(lambda: len(self.days()) == count, SECONDS)
        await_that(lambda: {state for _, state in self.days()} <= {"success", "failed"}, 2 * BATCH_SECONDS)

    def declare(self, name: str, old: str = "", new: str = "") -> None:
        """One more detector, whose owner is another."""
        folder = self.stack.project / "detectors"
        text = (folder / "failed_logins.py").read_text()
        assert old in text
        (folder / f"{name}.py").write_text(text.replace(old, new).replace("security@example.com", OWNER))
