"""A broker that asks for a login over TLS, and lets nobody do what no rule allows."""

from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported all the same
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from tests.rig.broker import Broker
from tests.rig.certificates import write_certificate
from tests.rig.waiting import patient
from tocsin.declare.setting_blocks import KafkaSettings
from tocsin.dev.servers.kafka_server import Kafka

ADMIN = "admin"


@dataclass(frozen=True)
class SecuredKafka(Kafka):
    """The broker of the stack with another listener for its clients.

    Attributes:
        users: who may log in; the password of each is `secret-` and the name.
    """

    users: tuple[str, ...] = ()

    @property
    def client(self) -> KafkaSettings:
        """The login of the administrator."""
        return KafkaSettings(
            bootstrap_servers=f"127.0.0.1:{self.port}",
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username=ADMIN,
            sasl_password_file=self.password_file(ADMIN),
            ssl_ca_file=self.folder / "test-certificate.pem",
        )

    def password_file(self, user: str) -> Path:
        path = self.folder / f"{user}.password"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"secret-{user}\n")
        return path

    def _properties(self, data: Path) -> str:
        files = self.folder / "test-certificate.pem", self.folder / "test-key.pem"
        if not files[0].exists():
            write_certificate(self.folder)
        store = self.folder / "broker.pem"
        store.write_text(files[1].read_text() + files[0].read_text())
        users = " ".join(f'user_{one}="secret-{one}"' for one in (ADMIN, *self.users))
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        listener = f"listeners=SASL_SSL://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller_port}"
        plain = Kafka._properties(self, data).splitlines()
        kept = [one for one in plain if not one.startswith(("listeners=", "advertised.listeners=", "inter.broker."))]
        return "\n".join(
            [
                *kept,
                listener,
                f"advertised.listeners=SASL_SSL://127.0.0.1:{self.port}",
                "listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name=SASL_SSL",
                "sasl.mechanism.inter.broker.protocol=PLAIN",
                "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config="
                "org.apache.kafka.common.security.scram.ScramLoginModule required;",
                f"listener.name.sasl_ssl.plain.sasl.jaas.config={module} required "
                f'username="{ADMIN}" password="secret-{ADMIN}" {users};',
                "ssl.keystore.type=PEM",
                f"ssl.keystore.location={store}",
                "ssl.truststore.type=PEM",
                f"ssl.truststore.location={files[0]}",
                "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                # The controller knows its broker as ANONYMOUS; a client that logs in never is.
                f"super.users=User:{ADMIN};User:ANONYMOUS",
                "",
            ]
        )


def allow_scram(kafka: SecuredKafka) -> None:
    """Let each user log in by SCRAM-SHA-512 too, with the same password."""
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    new: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(one, how, f"secret-{one}".encode()) for one in kafka.users
    ]
    admin = AdminClient(kafka.client.for_librdkafka())
    for done in admin.alter_user_scram_credentials(new).values():
        done.result(patient(10))


class SecuredBroker(Broker):
    """One secured broker with a folder of its own."""

    def __init__(self, folder: Path, users: tuple[str, ...]) -> None:
        super().__init__(folder)
        plain = self._kafka
        self._kafka = self.secured = SecuredKafka(
            folder, plain.log, plain.port, plain.controller_port, plain.java, users
        )
