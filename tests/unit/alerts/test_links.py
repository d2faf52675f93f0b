"""Links in mails: who may read them, and until when."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tocsin.alerts.links import Answer, LinkAction, LinkRefused, Links
from tocsin.declare.blocks.web_settings import WebSettings
from tocsin.declare.setting_blocks import TlsSettings
from tocsin.declare.settings import Settings

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
ANSWER = Answer(7, LinkAction.SILENCE_HOUR, "ann@example.com")


def settings(state: Path, address: str | None = None, host: str = "127.0.0.1") -> Settings:
    tls = TlsSettings(certificate_file=Path("c"), key_file=Path("k")) if host != "127.0.0.1" else TlsSettings()
    return Settings(state=state, web=WebSettings(address=address, host=host), tls=tls)


def links(state: Path) -> Links:
    return Links(settings(state))


def token(made: Links) -> str:
    return made.answer(ANSWER.alert, ANSWER.action, ANSWER.recipient, NOW).rpartition("/answer/")[2]


def test_a_link_is_read_until_it_expires_by_whoever_has_the_secret_of_the_installation(tmp_path: Path) -> None:
    signed = token(links(tmp_path))
    assert links(tmp_path).read(signed, NOW + timedelta(days=7, seconds=-1)) == ANSWER
    with pytest.raises(LinkRefused, match="expired: it was good for 7 days"):
        links(tmp_path).read(signed, NOW + timedelta(days=7))
    for forged in (signed[:-4], f"x{signed}", "", token(links(tmp_path / "other"))):
        with pytest.raises(LinkRefused, match="damaged or was not made here"):
            links(tmp_path).read(forged, NOW)


def test_the_secret_is_made_once_also_by_processes_that_start_together_and_for_their_user_alone(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(lambda _: token(links(tmp_path)), range(16)))
    assert len(tokens) == 1
    assert [(file.name, file.stat().st_mode & 0o777) for file in tmp_path.iterdir()] == [("web.secret", 0o600)]


@pytest.mark.parametrize(
    ("address", "host", "page", "here"),
    [
        (None, "127.0.0.1", "http://127.0.0.1:8431/alerts/7", "http://127.0.0.1:8431"),
        (None, "10.0.0.1", "https://10.0.0.1:8431/alerts/7", "https://10.0.0.1:8431"),
        (None, "fd00::1", "https://[fd00::1]:8431/alerts/7", "https://[fd00::1]:8431"),
        ("https://a.org/tocsin/", "0.0.0.0", "https://a.org/tocsin/alerts/7", "https://a.org/tocsin"),
        (None, "0.0.0.0", "", "https://127.0.0.1:8431"),
        (None, "::", "", "https://127.0.0.1:8431"),
    ],
)
def test_an_address_follows_from_the_settings(
    tmp_path: Path, address: str | None, host: str, page: str, here: str
) -> None:
    own, port = settings(tmp_path, address, host), f":{WebSettings().port}"
    made = Links(own)
    assert (made.alert(7), own.local_web_address) == (page.replace(":8431", port), here.replace(":8431", port))
    assert bool(made.answer(7, "acknowledge", "ann@example.com", NOW)) == bool(page)
    if page:
        assert made.job("detector:a") == made.alert(7).replace("alerts/7", "job?dag_id=detector__a")
