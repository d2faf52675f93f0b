"""Countries of addresses in the JVM, against a search through all networks in Python."""

import random
from pathlib import Path

import pytest

from tests.rig.samples.networks import addresses_in, known_of, networks_of, write_networks
from tests.spark.raw_records import Read, as_json, source
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.source import Enrichment, Source
from tocsin.declare.source_file import digest_of

NONE = [
    "", " ", "unknown", "localhost", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.256", "1.2.3.4/24", "16909060",
    "1.2.3.4\n", ":", ":::", "1:2", "::1%eth0", "[::1]", "12345::", "fe80::g", "1:2:3:4:5:6:7:8:9", ".1:2", "a.b:c",
    "\u0661.2.3.4", "::1\n", "9" * 9_000,
]  # fmt: skip


def enriched(file: Path) -> Source:
    columns = {"visitor": "string", "at": "timestamp", "ip": "string", "country": "string"}
    looked_up = {"country": Enrichment(by="ip", file=file, digest=digest_of(file))}
    return source(columns=columns, optional=frozenset({"ip", "country"}), enrich=looked_up)


def test_the_country_of_each_address(read: Read, tmp_path: Path) -> None:
    chance, file = random.Random(20261125), tmp_path / "networks.csv"
    networks = networks_of(chance, 150)
    write_networks(file, networks)
    written = addresses_in(chance, networks, 600)
    mapped = [f"::ffff:{one}" for one in written if "." in one][:50]
    upper = [one.upper() for one in written if ":" in one][:50]
    outs = read(enriched(file), *[as_json(ip=one) for one in [*written, *mapped, *upper, *NONE]], as_json(country="XX"))
    expected = [known_of(networks, one.removeprefix("::ffff:")) for one in [*written, *mapped, *upper]]
    assert [out.columns.get("country") for out in outs] == [*expected, *[None] * (len(NONE) + 1)]
    assert {out.topic for out in outs} == {"events.visits"}
    assert len(set(expected)) == 5


def test_a_changed_file_is_read_anew_and_a_broken_one_is_a_fault(read: Read, tmp_path: Path) -> None:
    file = tmp_path / "networks.csv"
    for country in ("DE", "FR"):
        file.write_text(f"cidr,country\n10.0.0.0/8,{country}\n")
        assert read(enriched(file), as_json(ip="10.1.2.3"))[0].columns["country"] == country
    file.write_text("cidr,country\n10.0.0.0/8,\n")
    assert "country" not in read(enriched(file), as_json(ip="10.1.2.3"))[0].columns
    file.write_text("cidr,country\n10.0.0.0/88,DE\n")
    with pytest.raises(ConfigError, match=r"networks\.csv:2"):
        read(enriched(file), as_json(ip="10.1.2.3"))
