"""Trust stores for Java: its own list of authorities does not know those that an administrator added to the system."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
import time
from pathlib import Path

from tocsin.declare.model.errors import ConfigError

# Debian and Ubuntu; Fedora and Red Hat; openSUSE; Arch.
_SYSTEM_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/java/cacerts"),
    Path("/var/lib/ca-certificates/java-cacerts"),
    Path("/etc/ca-certificates/extracted/java-cacerts.jks"),
)
_PASSWORD = "changeit"  # every Java's default: a trust store holds nothing secret
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def trust_options(folder: Path, bundled: bool) -> list[str]:
    """Options that make a Java trust what the system trusts; none when its own list will do.

    `folder` keeps a trust store made from SSL_CERT_FILE. A `bundled` Java, a Python package, knows no local authority.

    Raises:
        ConfigError: when SSL_CERT_FILE cannot be read or holds no certificate.
    """
    authorities = os.environ.get("SSL_CERT_FILE")
    store = None
    if authorities:
        store = _store_from(Path(authorities), folder)
    elif bundled:
        store = next((path for path in _SYSTEM_STORES if path.is_file()), None)
    if store is None:
        return []
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


def _store_from(authorities: Path, folder: Path) -> Path:
    try:
        pem = authorities.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError.one(authorities, f"cannot be read: {error.strerror}", key="SSL_CERT_FILE") from error
    certificates = [ssl.PEM_cert_to_DER_cert(block) for block in _CERTIFICATE.findall(pem)]
    if not certificates:
        raise ConfigError.one(authorities, "holds no certificate", key="SSL_CERT_FILE")
    store = folder / f"trust-{hashlib.sha256(pem.encode()).hexdigest()[:12]}.jks"
    if not store.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = store.with_suffix(f".{os.getpid()}")
        partial.write_bytes(java_key_store(certificates))
        partial.rename(store)
    return store


def java_key_store(certificates: list[bytes]) -> bytes:
    """A Java key store (JKS, version 2) of trusted certificates, given in DER.

    Written here because keytool adds one certificate per JVM start, and a system trusts more than a hundred.
    """
    body = struct.pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        entry = struct.pack(">I", 2) + _text(f"authority-{number}") + struct.pack(">Q", int(time.time() * 1000))
        body += entry + _text("X.509") + struct.pack(">I", len(certificate)) + certificate
    # The format ends with a keyed hash; its salt is part of the format.
    return body + hashlib.sha1(_PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded
