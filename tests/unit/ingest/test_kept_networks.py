"""A file of networks that is not usable any more: what was in force stays so, and what is wrong is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError, Fault
from tocsin.declare.model.source import Source
from tocsin.ingest import network_ranges
from tocsin.ingest.network_ranges import NetworkRanges, read_ranges, with_usable_networks

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
