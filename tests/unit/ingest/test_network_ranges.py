"""What a file of networks says of addresses, against a search through all of them, and how its faults are told."""

import random
from bisect import bisect_right
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from tests.rig.samples.networks import Network, addresses_in, known_of, networks_of, write_networks
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.source import Source
from tocsin.ingest import network_ranges
from tocsin.ingest.network_ranges import NetworkRanges, read_ranges, with_usable_networks


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "networks.csv"


def find(ranges: NetworkRanges, address: str) -> str | None:
    packed = ip_address(address).packed
    key = bytes([4 if len(packed) == 4 else 6]) + packed + bytes(16 - len(packed))
    return ranges.values[bisect_right(ranges.starts, key) - 1]


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_network_counts(file: Path, seed: int) -> None:
    chance = random.Random(seed)
    networks = networks_of(chance, 60)
    write_networks(file, networks)
    ranges = read_ranges(file, "country")
    assert ranges.starts == sorted(set(ranges.starts))
    for address in addresses_in(chance, networks, 400):
        assert find(ranges, address) == known_of(networks, address), address


def test_the_whole_of_both_families(file: Path) -> None:
    networks: list[Network] = [(ip_network(one), value) for one, value in (("0.0.0.0/0", "four"), ("::/0", "six"))]
    write_networks(file, [*networks, (ip_network("255.255.255.255/32"), "last")])
    ranges = read_ranges(file, "country")
    ends = ("0.0.0.0", "255.255.255.254", "255.255.255.255", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
    assert [find(ranges, one) for one in ends] == ["four", "four", "last", "six", "six"]


def test_an_empty_field_says_nothing_of_a_network_inside_another(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbfasn,cidr,country\r\n1,10.0.0.0/8,DE\r\n\r\n,10.1.0.0/16,\r\n3, 10.2.0.0/16 ,FR\r\n")
    ranges = read_ranges(file, "country")
    assert [find(ranges, f"10.{one}.0.1") for one in range(4)] == ["DE", None, "FR", "DE"]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (["10.0.0.1/8,DE"], "2: '10.0.0.1/8' is an address in a network"),
        (["10.0.0.0/8,DE", "1.0.0.0/8,US", "10.0.0.0/8,DE"], "4: has the network of line 2 again"),
        (["10.0.0.0/33,DE"], "2: '10.0.0.0/33' is not a network, such as"),
        (["10.0.0.0/8,D\0E"], "2: has a NUL in column 'country'"),
        (["10.0.0/8,DE"], "is not a network"),
        (["010.0.0.0/8,DE"], "is not a network"),
        (["10.0.0.0,DE"], "is not a network"),
        (["2001:db8::/١٢,DE"], "is not a network"),
        (["example.com/8,DE"], "is not a network"),
        ([",DE"], "is not a network"),
        (["::ffff:10.0.0.0/104,DE"], "write the network as IPv4"),
        (["10.0.0.0/8,Korea, Republic of"], "2: has 3 fields, and its first line 2; a comma within one needs quotes"),
        (["10.0.0.0/8"], "2: has 1 fields"),
        (['"10.0.0.0/8,DE'], "cannot be read: unexpected end of data"),
        ([], "has no network"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(file: Path, rows: list[str], told: str) -> None:
    file.write_text("\n".join(["cidr,country", *rows]))
    with pytest.raises(ConfigError) as caught:
        read_ranges(file, "country")
    assert told in str(caught.value)
    assert str(caught.value).startswith(str(file))


def test_a_file_that_is_none(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_ranges(file, "country")
    file.write_text("network,county\n")
    with pytest.raises(
        ConfigError, match=r"networks.csv:1: needs the column 'cidr' once; its first line names network, county"
    ):
        read_ranges(file, "country")
    file.write_bytes(b"cidr,country\n10.0.0.0/8,\xff\n")
    with pytest.raises(ConfigError, match="cannot be read: 'utf-8' codec"):
        read_ranges(file, "country")


def test_a_file_that_is_too_long(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.ingest.network_ranges.MOST_NETWORKS", 3)
    write_networks(file, [(ip_network(f"10.{one}.0.0/16"), "DE") for one in range(3)])
    assert read_ranges(file, "country").values == [None, "DE", None]
    write_networks(file, [(ip_network(f"10.{one}.0.0/16"), "DE") for one in range(4)])
    with pytest.raises(ConfigError, match="has more than 3 networks"):
        read_ranges(file, "country")


LOGINS = """
title = "Logins"
owner = "web@example.com"
format = "json"
key = "user"
event_time = "ingested_at"

[schema]
user = "string"
ip = "string"

[enrich]
country = { by = "ip", file = "sources/networks.csv" }
"""
GOOD, OTHER, BAD = (f"cidr,country\n{rows}\n" for rows in ("10.0.0.0/8,DE", "10.0.0.0/8,FR", "10.0.0.0/8"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/logins.toml").write_text(LOGINS)
    return tmp_path


def source(project: Path, networks: str | None) -> Source:
    """Read the source, whose networks are now these."""
    file = project / "sources/networks.csv"
    file.unlink(missing_ok=True) if networks is None else file.write_text(networks)
    return read_catalog(project).source("logins")


def in_force(used: tuple[Source, list[Fault]]) -> tuple[str, str]:
    """What is looked up in, without faults, and its digest."""
    (one,) = used[0].enrich.values()
    assert used[1] == []
    return one.file.read_text(), one.digest


def test_the_catalog_notices_another_file(project: Path) -> None:
    digests = [source(project, one).enrich["country"].digest for one in (GOOD, OTHER, None, GOOD)]
    assert digests[0] == digests[3] != digests[1]
    assert digests[2] == ""


def test_the_copy_is_used_while_the_file_is_not_usable(project: Path) -> None:
    kept = project / "kept"
    with pytest.raises(ConfigError, match="cannot be read"):
        with_usable_networks(source(project, None), kept)
    good = source(project, GOOD)
    assert in_force(with_usable_networks(good, kept)) == (GOOD, good.enrich["country"].digest)
    for networks in (BAD.replace("/8", "/88"), None):
        used, faults = with_usable_networks(source(project, networks), kept)
        assert used.enrich["country"].file.read_text() == GOOD
        assert len(faults) == 1
        assert used.enrich["country"].digest == good.enrich["country"].digest
    other = source(project, OTHER)
    assert in_force(with_usable_networks(other, kept)) == (OTHER, other.enrich["country"].digest)


def test_a_file_that_changes_while_it_is_read_is_not_looked_up_in(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_change(path: Path, column: str, content: bytes | None = None) -> NetworkRanges:
        found = read_ranges(path, column, content)
        path.write_text(BAD)
        return found

    good = source(project, GOOD)
    monkeypatch.setattr(network_ranges, "read_ranges", read_and_change)
    assert in_force(with_usable_networks(good, project / "kept")) == (GOOD, good.enrich["country"].digest)
