"""Random networks with what is known of them, and the slow way to look an address up."""

import random
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path

Network = tuple[IPv4Network | IPv6Network, str]


def networks_of(chance: random.Random, count: int) -> list[Network]:
    """Make different networks, many of them inside others."""
    found: dict[IPv4Network | IPv6Network, str] = {}
    while len(found) < count:
        if chance.random() < 0.5:
            length, whole, first = chance.choice((8, 12, 16, 24, 31, 32)), 32, 10 << 24 | chance.getrandbits(18)
        else:
            length, whole = chance.choice((32, 34, 48, 64, 127, 128)), 128
            first = 0x20010DB8 << 96 | chance.getrandbits(4) << 90 | chance.getrandbits(9)
        kept = first >> (whole - length) << (whole - length)
        network = ip_network((kept.to_bytes(whole // 8), length))
        found[network] = chance.choice(("AT", "DE", "FR", 'Côte d\'Ivoire, "CI"'))
    return list(found.items())


def write_networks(path: Path, networks: Sequence[Network]) -> None:
    rows = [f"{network},{_quoted(country)}" for network, country in networks]
    path.write_text("\n".join(["cidr,country", *rows, ""]), encoding="utf-8")


def addresses_in(chance: random.Random, networks: Sequence[Network], count: int) -> list[str]:
    """Pick addresses at the edges of networks, just outside, and inside."""
    found = []
    for _ in range(count):
        network, _ = chance.choice(networks)
        size = network.num_addresses
        number = int(network.network_address) + chance.choice((0, -1, 1, size - 1, size, chance.randrange(size)))
        whole = 32 if network.version == 4 else 128
        found.append(str(ip_address((number % (1 << whole)).to_bytes(whole // 8))))
    return found


def known_of(networks: Sequence[Network], address: str) -> str | None:
    """Look at every network."""
    there = [one for one in networks if ip_address(address) in one[0]]
    return max(there, key=lambda one: one[0].prefixlen)[1] if there else None


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'
