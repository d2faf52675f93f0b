"""The rights of each role: what its jobs need, and nothing by which one role could act for another."""

from __future__ import annotations

import pytest

from tocsin.kafka.access.access_rules import AclRule, as_commands, wanted_rules
from tocsin.kafka.access.role_rights import GROUP, READ, TOPIC, WRITE, Right, rights_of
from tocsin.kafka.topics import wanted_topics
from tocsin.project.blocks.kafka_login import OPERATOR, ROLES, KafkaLogin
from tocsin.project.catalog import read_catalog
from tocsin.project.setting_blocks import KafkaSettings
from tocsin.project.settings import Settings
from tocsin.provision.paths import here
from tocsin.supervision.job_kinds import KINDS

CATALOG = read_catalog(here().root)
SETTINGS = Settings(
    kafka=KafkaSettings(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password_file=here().root / "password",
        topic_prefix="acme.",
        logins={"indexer": KafkaLogin(username="index", password_file=here().root / "index")},
    )
)


def test_each_kind_of_job_is_a_role_and_has_rights() -> None:
    assert set(ROLES) == {*KINDS, OPERATOR}
    for role in ROLES:
        rights = rights_of(role, SETTINGS, CATALOG)
        assert all(one.name.startswith("acme.") for one in rights)
        topics = {one.name for one in rights if one.kind == TOPIC and not one.is_beginning}
        assert topics <= set(wanted_topics(SETTINGS, CATALOG))


def test_findings_are_written_by_detectors_alone_and_raw_records_by_the_drain() -> None:
    def writers(topic: str) -> set[str]:
        return {one for one in ROLES if Right(TOPIC, topic, WRITE) in rights_of(one, SETTINGS, CATALOG)}

    assert writers("acme.findings") == {"detector"}
    assert writers("acme.raw.logins") == {"drain"}
    assert writers("acme.events.logins") == {"ingest"}
    assert writers("acme.job-metrics") == {*KINDS}


def test_a_role_commits_for_its_own_jobs_alone() -> None:
    def committers(group: str) -> set[str]:
        rights = {role: rights_of(role, SETTINGS, CATALOG) for role in KINDS}
        return {
            role
            for role, all_of_it in rights.items()
            for one in all_of_it
            if (one.kind, one.operation) == (GROUP, READ)
            and (group.startswith(one.name) if one.is_beginning else group == one.name)
        }

    assert committers(SETTINGS.names.group("ingest:logins")) == {"ingest"}
    assert committers(SETTINGS.names.group("detector:x") + ".spark-1") == {"detector"}
    assert committers(SETTINGS.names.group("indexer")) == {"indexer"}


def test_rules_are_for_the_logins_that_the_settings_name() -> None:
    rules = wanted_rules(SETTINGS, CATALOG)
    assert {rule.principal for rule in rules} == {"User:me", "User:index"}
    (command,) = as_commands([AclRule("User:index", Right(GROUP, "acme.tocsin.", READ, is_beginning=True))], "k:1")
    assert command.endswith("--operation Read --group 'acme.tocsin.' --resource-pattern-type prefixed")
    own = SETTINGS.kafka.for_role("indexer")
    assert (own.sasl_username, own.logins, SETTINGS.kafka.for_role("ingest").sasl_username) == ("index", {}, "me")


def test_the_operator_has_no_login_beside_the_base_one() -> None:
    login = {"username": "x", "password_file": here().root / "x"}
    fields = SETTINGS.kafka.model_dump() | {"logins": {"operator": login}}
    with pytest.raises(ValueError, match="the operator logs in by sasl_username"):
        KafkaSettings(**fields)
