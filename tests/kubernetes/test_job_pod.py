"""A Spark job in its pod: the container's command, with the variables, files and folder of the manifest and no others.

The supervisor and its login are real, and so are the API and Kafka, which asks for a password; the node is played.
"""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rig.detect_job import Topic
from tests.rig.installation import READY_SECONDS, Installation
from tests.rig.kube_client import PODS, SECRETS
from tests.rig.kube_server import KubeServer
from tests.rig.observed import DETECT
from tests.rig.samples.project import copy_project
from tests.rig.secured_broker import SecuredBroker
from tests.rig.waiting import await_that
from tocsin.declare import setting_blocks
from tocsin.declare.model.job_report import JobState
from tocsin.declare.setting_blocks import RunnerSettings
from tocsin.declare.settings import Settings
from tocsin.platform.heartbeat import read_beat
from tocsin.setup.java import find_java
from tocsin.supervise.installed_jobs import InstalledJobs
from tocsin.supervise.job_kinds import desired_jobs
from tocsin.supervise.runners.cluster_runner import GRACE_SECONDS


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SecuredBroker]:
    one = SecuredBroker(tmp_path / "broker", ())
    try:
        one.start()
        yield one
    finally:
        one.stop()


def in_the_cluster(one: Installation, server: KubeServer, secrets: Path) -> Settings:
    """The settings of the pods: what they need to log in to Kafka is in a Secret."""
    outside = one.settings.kafka
    assert outside.sasl_password_file is not None
    assert outside.ssl_ca_file is not None
    files = {"kafka": outside.sasl_password_file.read_text(), "ca.pem": outside.ssl_ca_file.read_text()}
    server.admin.ask("POST", SECRETS, {"metadata": {"name": "ours"}, "stringData": files})
    secrets.mkdir()
    inside = {"sasl_password_file": secrets / "kafka", "ssl_ca_file": secrets / "ca.pem"}
    runner = RunnerSettings(kind="kubernetes", image="shop:1", secret="ours")
    return one.settings.model_copy(update={"kafka": outside.model_copy(update=inside), "runner": runner})


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.usefixtures("settings")
def test_a_detector_finds_is_evicted_counts_on_in_its_next_pod_and_ends_in_time(
    tmp_path: Path, broker: SecuredBroker, server: KubeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 failed logins are found; with 41 further ones, after the eviction and in the same window, they are 101."""
    with Installation(tmp_path / "pods", broker) as one:
        copy_project(one.settings.project)  # with the limits that are shipped
        one.make_topics()
        monkeypatch.setattr(setting_blocks, "SECRET_FOLDER", str(tmp_path / "secrets"))
        settings = in_the_cluster(one, server, tmp_path / "secrets")
        jobs, topic, moment = InstalledJobs(settings, find_java().home), Topic(one.settings), datetime.now(UTC)
        desired = {DETECT: desired_jobs(jobs.catalog.read(), settings)[DETECT]}

        def await_looking(condition: Callable[[], bool]) -> None:
            def look() -> bool:
                jobs.supervisor.tick(desired)
                return condition()

            await_that(look, READY_SECONDS, lambda: one.log(DETECT)[-4000:], every=0.3)

        def runs_since(began: datetime) -> bool:
            beat = read_beat(settings.state, DETECT)
            if beat is None or beat.report.started_at is None:
                return False
            # When a process began is known to a second: Linux tells it from the second of its own start.
            is_new = beat.report.started_at > began - timedelta(seconds=1)
            return is_new and beat.report.state in (JobState.RUNNING, JobState.DRAINING)

        def scores() -> list[tuple[str, float]]:
            found = {value["finding_id"]: value for value in one.values(settings.names.findings)}
            return [(value["level"], value["score"]) for value in found.values()]

        await_looking(lambda: runs_since(moment))
        (process,) = jobs.runner.list()
        for _ in range(60):
            topic.event("ann", moment, datetime.now(UTC), 0)
        topic.flush()
        await_looking(lambda: scores() == [("email", 60)])

        (pod,) = server.admin.items(PODS)
        evicted = datetime.now(UTC)
        server.admin.ask("DELETE", f"{PODS}/{pod['metadata']['name']}", {"gracePeriodSeconds": GRACE_SECONDS})
        await_looking(lambda: runs_since(evicted))
        for _ in range(41):
            topic.event("ann", moment, datetime.now(UTC), 1)
        topic.flush()
        await_looking(lambda: scores() == [("urgent", 101)])
        past = jobs.supervisor.pasts()[DETECT]
        assert (past.failures, past.works) == ((), True), "an eviction is no failure, and its beats are read"
        assert [found.pid for found in jobs.runner.list()] == [process.pid]

        desired.clear()
        began = time.monotonic()
        await_looking(lambda: jobs.runner.list() == [])
        assert time.monotonic() - began < GRACE_SECONDS
