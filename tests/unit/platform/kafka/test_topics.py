"""New topics can be read before anybody does, and a job has the rights that it needs."""

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports it, but not in mypy's sense
    AclOperation,
)

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, TocsinError, TransientError
from tocsin.declare.model.sizes import VIEW_BYTES
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.declare.settings import Settings
from tocsin.platform.kafka import topics
from tocsin.platform.kafka.topics import TopicSpec, _await_visible, check_access, wanted_topics
from tocsin.setup.paths import here

SPEC = TopicSpec("raw.x", 1, {})


class Admin:
    """A broker that answers the question for the end of a partition with `codes`, one after the other, then well."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={"raw.x": SimpleNamespace(partitions={0: None})})

    def list_offsets(self, places: Iterable[Any], request_timeout: float) -> dict[Any, Future[None]]:
        futures: dict[Any, Future[None]] = {place: Future() for place in places}
        for future in futures.values():
            if self.codes:
                future.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
            else:
                future.set_result(None)
        return futures


@pytest.mark.parametrize("code", [3, 5, 6, 74, 75])  # Kafka's numbers: topic, leader, leader, epoch, epoch
def test_a_partition_without_a_leader_is_waited_for(code: int) -> None:
    admin = Admin(code, code)
    _await_visible(admin, [SPEC], 5.0)  # type: ignore[arg-type]
    assert admin.codes == []
    with pytest.raises(TransientError, match=r"raw\.x"):
        _await_visible(Admin(*[code] * 100), [SPEC], 0.1)  # type: ignore[arg-type]


def test_what_is_refused_is_not_waited_for() -> None:
    with pytest.raises(TocsinError, match="refuses"):
        _await_visible(Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED), [SPEC], 5.0)  # type: ignore[arg-type]


def test_the_topic_of_a_view_keeps_the_last_version_of_each_row_for_good() -> None:
    catalog = read_catalog(here().root / "examples" / "inventory")
    spec = wanted_topics(Settings(), catalog)["views.inventory"]
    assert (spec.partitions, spec.config["cleanup.policy"]) == (2, "compact")
    assert "retention.ms" not in spec.config
    assert spec.config["max.message.bytes"] == str(VIEW_BYTES)


# --- access -----------------------------------------------------------------------------------------------------------


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
