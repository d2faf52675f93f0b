from __future__ import annotations

import base64
import hashlib
import struct
from pathlib import Path

import pytest

from tocsin.declare.model.errors import ConfigError
from tocsin.setup.java import java_key_store, trust_options


def pem(*certificates: bytes) -> str:
    blocks = [base64.b64encode(each).decode() for each in certificates]
    return "".join(f"# a name\n-----BEGIN CERTIFICATE-----\n{each}\n-----END CERTIFICATE-----\n" for each in blocks)


def store_of(options: list[str]) -> Path:
    return Path(options[0].removeprefix("-Djavax.net.ssl.trustStore="))


def test_authorities_of_ssl_cert_file_become_a_trust_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(pem(b"first", b"second"))
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    first = trust_options(tmp_path / "java", bundled=False)
    assert first[1] == "-Djavax.net.ssl.trustStorePassword=changeit"
    written = store_of(first).read_bytes()
    assert struct.unpack(">III", written[:12]) == (0xFEEDFEED, 2, 2)
    assert b"first" in written
    assert b"second" in written
    bundle.write_text(pem(b"third"))
    assert b"third" in store_of(trust_options(tmp_path / "java", bundled=True)).read_bytes()


def test_the_store_ends_with_the_hash_that_java_checks() -> None:
    written = java_key_store([b"certificate"])
    keyed = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + written[:-20]
    assert written[-20:] == hashlib.sha1(keyed).digest()


@pytest.mark.parametrize("content", [None, "no certificate here"])
def test_a_useless_ssl_cert_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with pytest.raises(ConfigError, match=r"bundle\.pem: SSL_CERT_FILE: "):
        trust_options(tmp_path / "java", bundled=True)


def test_without_anything_to_add_java_keeps_its_own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert trust_options(tmp_path / "java", bundled=False) == []
    monkeypatch.setattr("tocsin.setup.java._SYSTEM_STORES", (tmp_path / "absent",))
    assert trust_options(tmp_path / "java", bundled=True) == []
