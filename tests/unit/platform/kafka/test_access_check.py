"""The check of a job's rights: it asks for what this job uses, and takes silence for no answer."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports it, but not in mypy's sense
    AclOperation,
)

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka import topics
from tocsin.platform.kafka.topics import check_access
from tocsin.setup.paths import here

KAFKA = KafkaSettings(
    security_protocol="SASL_SSL",
    sasl_mechanism="PLAIN",
    sasl_username="me",
    sasl_password_file=here().root / "password",
    topic_prefix="acme.",
)
SETTINGS = Settings(kafka=KAFKA, project=here().root)
ALL = [AclOperation.READ, AclOperation.WRITE]
JOB, TOPICS = "detector:failed_logins", (("acme.events.logins",), ("acme.findings",))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any] | None]:
    """What the broker reports of each topic; those that are not in it may be read and written."""
    found: dict[str, list[Any] | None] = {}

    class Admin:
        def __init__(self, *_: object) -> None: ...

        def describe_topics(self, topics: list[str], **_: object) -> dict[str, Future[Any]]:
            futures: dict[str, Future[Any]] = {name: Future() for name in topics}
            for name, future in futures.items():
                future.set_result(SimpleNamespace(authorized_operations=found.get(name, ALL)))
            return futures

    monkeypatch.setattr(topics, "AdminClient", Admin)
    monkeypatch.setattr(topics, "TopicCollection", list)
    monkeypatch.setattr(type(SETTINGS.kafka), "for_librdkafka", lambda _: {})
    return found


def test_a_topic_of_other_jobs_without_rules_is_no_fault(answers: dict[str, list[Any] | None]) -> None:
    answers["acme.raw.logins"] = []
    check_access(SETTINGS, JOB, *TOPICS)
    check_access(SETTINGS, "drain")
    answers["acme.findings"] = [AclOperation.READ]
    with pytest.raises(ConfigError, match=r"me lacks Write on topic acme\.findings, which detector:"):
        check_access(SETTINGS, JOB, *TOPICS)
    answers["acme.findings"] = []
    with pytest.raises(ConfigError, match=r"me lacks Read on topic acme\.findings, which indexer needs"):
        check_access(SETTINGS, "indexer")


def test_a_broker_that_does_not_report_rights_refuses_none(answers: dict[str, list[Any] | None]) -> None:
    answers["acme.findings"] = None
    check_access(SETTINGS, JOB, *TOPICS)


def test_each_kind_of_job_is_a_role_and_the_operator_has_no_login_beside_the_base_one() -> None:
    login = {"username": "x", "password_file": here().root / "x"}
    logins = KAFKA.model_dump() | {"logins": {"indexer": login}}
    kafka = KafkaSettings(**logins)
    own, base = kafka.for_role("indexer"), kafka.for_role("ingest")
    assert (own.sasl_username, own.logins, base.sasl_username) == ("x", {}, "me")
    with pytest.raises(ValueError, match="the operator logs in by sasl_username"):
        KafkaSettings(**logins | {"logins": {"operator": login}})
    with pytest.raises(ValueError, match=r"logins.indexr: no kind of job; the kinds are .*indexer"):
        KafkaSettings(**logins | {"logins": {"indexr": login}})
