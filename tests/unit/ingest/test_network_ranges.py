"""What a file of networks says of addresses, against a search through all of them, and how its faults are told."""

from __future__ import annotations

import random
from bisect import bisect_right
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from tests.rig.samples.networks import Network, addresses_in, known_of, networks_of, write_networks
from tocsin.declare.model.errors import ConfigError
from tocsin.ingest.network_ranges import NetworkRanges, read_ranges


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
        ConfigError, match=r"networks.csv:1: has no column 'cidr'; its first line names network, county"
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
