import os
import socket
from collections.abc import Iterator

import psutil
import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import AirflowSettings, KafkaSettings, SmtpSettings
from tocsin.declare.settings import Settings
from tocsin.dev.servers.ports import accepts, choose, free_ports, owner_of, require_free


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_all_ports_in_use_are_told_at_once_with_what_needs_them_and_their_owner(taken: int) -> None:
    with pytest.raises(ConfigError) as refused:
        require_free({"Kafka": taken, "page": free_ports(1)[0], "mail sink": taken})
    assert [fault.where for fault in refused.value.faults] == ["Kafka", "mail sink"]
    assert f"port {taken} is in use by process {os.getpid()} ({psutil.Process().cmdline()[0]}" in str(refused.value)


def test_a_port_on_all_addresses_is_in_use_too() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server, pytest.raises(ConfigError):
        require_free({"Kafka": server.getsockname()[1]})


def test_free_ports_differ_and_are_free() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    require_free({str(port): port for port in found})
    assert not any(accepts(port) for port in found[:3])


def test_whether_something_accepts(taken: int) -> None:
    assert accepts(taken)
    assert "process" in owner_of(taken)
    assert "may not see" in owner_of(free_ports(1)[0])


def test_configured_ports_are_taken_as_they_are() -> None:
    kafka, smtp, page = free_ports(3)
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=f"localhost:{kafka}"), smtp=SmtpSettings(port=smtp))
    chosen = choose(settings, free=False, mail_page=page)
    assert (chosen.kafka, chosen.smtp, chosen.mail_page) == (kafka, smtp, page)
    assert chosen.controller not in (kafka, smtp, page)


def test_airflow_has_and_needs_a_port_only_if_it_is_wanted(taken: int) -> None:
    kafka, smtp, page, own = free_ports(4)
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers=f"localhost:{kafka}"),
        smtp=SmtpSettings(port=smtp),
        airflow=AirflowSettings(port=own),
    )
    assert choose(settings, free=False, mail_page=page, airflow=True).airflow == own
    assert choose(settings, free=True, mail_page=page).airflow is None
    assert choose(settings, free=True, mail_page=page, airflow=True).airflow not in (None, own)
    settings = settings.model_copy(update={"airflow": AirflowSettings(port=taken)})
    assert choose(settings, free=False, mail_page=page).airflow is None
    with pytest.raises(ConfigError, match=f"Airflow: port {taken} is in use"):
        choose(settings, free=False, mail_page=page, airflow=True)


def test_free_ports_are_taken_whatever_the_settings_say(taken: int) -> None:
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{taken}"))
    chosen = choose(settings, free=True, mail_page=taken)
    assert len({chosen.kafka, chosen.controller, chosen.smtp, chosen.mail_page, taken}) == 5


def test_settings_that_lead_elsewhere_are_refused_all_at_once() -> None:
    settings = Settings(
        kafka=KafkaSettings(bootstrap_servers="kafka.example.com:9092"), smtp=SmtpSettings(host="mail.example.com")
    )
    with pytest.raises(ConfigError) as refused:
        choose(settings, free=False, mail_page=1080)
    assert [fault.key for fault in refused.value.faults] == ["kafka.bootstrap_servers", "smtp.host"]
