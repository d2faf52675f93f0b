"""Write the rules (ACLs) that give each principal the rights of its role, and nothing more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it exports them, but not in mypy's sense
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tocsin.kafka.access.role_rights import TOPIC, Right, rights_of
from tocsin.kafka.client import reaching, refused
from tocsin.model.errors import ConfigError, TransientError
from tocsin.project.blocks.kafka_login import OPERATOR, ROLES
from tocsin.project.catalog import Catalog
from tocsin.project.setting_blocks import KafkaSettings
from tocsin.project.settings import Settings

_SECONDS = 15.0


@dataclass(frozen=True, order=True)
class AclRule:
    """What one principal, as in `User:tocsin-ingest`, may do from any host."""

    principal: str
    right: Right

    def __str__(self) -> str:
        return f"{self.principal} may {self.right}"


@dataclass(frozen=True)
class RulesReport:
    """The result of `ensure_rules`.

    Attributes:
        missing: the rules that were missing; they have been written unless only a look was asked for.
        unneeded: rules of the same principals that nothing declared needs; they were left alone.
    """

    missing: tuple[AclRule, ...]
    unneeded: tuple[str, ...]


def wanted_rules(settings: Settings, catalog: Catalog) -> frozenset[AclRule]:
    """List the rules that an installation needs: the rights of each role for the principal of its login.

    Raises:
        ConfigError: the settings name no login.
    """
    if settings.kafka.sasl_username is None:
        what = "has no login, so there is nobody to write rules for; set security_protocol and sasl_username"
        raise ConfigError.one("tocsin.toml", what, key="kafka")
    rules = set()
    for role in ROLES:
        if role == OPERATOR or role in settings.kafka.logins:
            principal = f"User:{settings.kafka.for_role(role).sasl_username}"
            rules |= {AclRule(principal, right) for right in rights_of(role, settings, catalog)}
    return frozenset(rules)


def ensure_rules(settings: Settings, catalog: Catalog, writer: KafkaSettings, *, write: bool = True) -> RulesReport:
    """Write the rules that are missing, with the login of `writer`. Nothing is removed; calling it again is harmless.

    Raises:
        ConfigError: the settings name no login, the writer may not write rules, or the broker has none.
        TransientError: Kafka cannot be reached; a retry helps.
    """
    wanted = wanted_rules(settings, catalog)
    admin = AdminClient(writer.for_librdkafka())
    with _writing(writer), reaching(writer, "rules (ACLs)"):
        admin.list_topics(timeout=_SECONDS)
        there = [one for who in sorted({rule.principal for rule in wanted}) for one in _rules_of(admin, who)]
        bindings = {rule: _binding(rule) for rule in wanted}
        missing = sorted(rule for rule, binding in bindings.items() if binding not in there)
        if write and missing:
            futures = admin.create_acls([bindings[rule] for rule in missing], request_timeout=_SECONDS)
            for future in futures.values():
                future.result()
    unneeded = sorted(_words(one) for one in set(there) - set(bindings.values()))
    return RulesReport(tuple(missing), tuple(unneeded))


def as_commands(rules: Iterable[AclRule], bootstrap_servers: str) -> list[str]:
    """Write `rules` as commands of Kafka's own tool, for whoever alone may run it."""
    return [
        f"kafka-acls.sh --bootstrap-server {bootstrap_servers} --add --allow-principal '{rule.principal}'"
        f" --operation {rule.right.operation} --{rule.right.kind} '{rule.right.name}'"
        f"{' --resource-pattern-type prefixed' if rule.right.is_beginning else ''}"
        for rule in sorted(rules)
    ]


@contextlib.contextmanager
def _writing(writer: KafkaSettings) -> Iterator[None]:
    try:
        yield
    except (ConfigError, TransientError) as error:
        cause = error.__cause__
        code = cause.args[0].code() if isinstance(cause, KafkaException) else None
        if code == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
            raise refused(writer, "may not write rules; give --username and --password-file of one who may") from error
        if code == KafkaError.SECURITY_DISABLED:
            what = "has no authorizer, so rules have no effect; set authorizer.class.name on each broker and controller"
            raise ConfigError.one(f"Kafka at {writer.bootstrap_servers}", what) from error
        raise


def _rules_of(admin: AdminClient, principal: str) -> list[AclBinding]:
    any_name, any_host = None, None
    anything = AclBindingFilter(
        ResourceType.ANY,
        any_name,  # type: ignore[arg-type]  # its types forget it
        ResourcePatternType.ANY,
        principal,
        any_host,  # type: ignore[arg-type]  # this too
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    return list(admin.describe_acls(anything, request_timeout=_SECONDS).result())


def _binding(rule: AclRule) -> AclBinding:
    right = rule.right
    return AclBinding(
        ResourceType.TOPIC if right.kind == TOPIC else ResourceType.GROUP,
        right.name,
        ResourcePatternType.PREFIXED if right.is_beginning else ResourcePatternType.LITERAL,
        rule.principal,
        "*",
        AclOperation[right.operation.upper()],
        AclPermissionType.ALLOW,
    )


def _words(one: AclBinding) -> str:
    kind, operation = ResourceType(one.restype).name.lower(), AclOperation(one.operation).name.capitalize()
    return f"{one.principal} {AclPermissionType(one.permission_type).name.lower()} {operation} on {kind} {one.name}"
