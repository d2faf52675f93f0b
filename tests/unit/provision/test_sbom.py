"""The SBOM says all that the locks say of what is installed, and nothing twice."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tocsin.provision.jars import LOCK, read_lock
from tocsin.provision.paths import here
from tocsin.provision.sbom.bill import bill
from tocsin.provision.sbom.lock_components import node_packages, python_packages

LOCKS = here().locks


def test_each_installed_package_is_listed_once_with_its_locks() -> None:
    made = bill(here())
    assert (made["bomFormat"], made["specVersion"], made["version"]) == ("CycloneDX", "1.5", 1)
    purls = [one["purl"] for one in made["components"]]
    assert purls == sorted(set(purls))
    assert all(one["hashes"] and one["bom-ref"] == one["purl"] for one in made["components"])
    pinned = {
        f"pkg:pypi/{name}@{version}"
        for lock in ("python.txt", "airflow.txt")
        for name, version in re.findall(r"^([\w.-]+)(?:\[.*?\])?==(\S+)", (LOCKS / lock).read_text(), re.M)
    }
    read = read_lock(LOCKS / LOCK)
    archives = {
        f"pkg:maven/{one.group}/{one.artifact}@{one.version}"
        for name in ("spark", "broker", "s3")
        for one in read[name]
    }
    entries = json.loads((LOCKS / "npm/package-lock.json").read_text())["packages"]
    assert set(purls) - {one for one in purls if one.startswith("pkg:npm/")} == pinned | archives
    assert {one["version"] for one in made["components"] if one["purl"].startswith("pkg:npm/")} == {
        entry["version"] for place, entry in entries.items() if place
    }
    (kafka,) = (one for one in made["components"] if one["purl"].startswith("pkg:pypi/confluent-kafka@"))
    assert {"name": "tocsin:lock", "value": "python.txt"} in kafka["properties"]


def test_hashes_and_licences_come_from_the_lock(tmp_path: Path) -> None:
    (tmp_path / "python.txt").write_text(
        "Zope.Event[all]==1.0 ; python_version < '4' \\\n"
        f"    --hash=sha256:{'a' * 64} \\\n    --hash=sha256:{'b' * 64}\n    # via x\n"
    )
    (one,) = python_packages(tmp_path / "python.txt", lambda name, version: f"{name} {version}")
    assert (one.purl, one.licence) == ("pkg:pypi/zope-event@1.0", "zope-event 1.0")
    assert one.hashes == {("SHA-256", "a" * 64), ("SHA-256", "b" * 64)}
    packages = {
        "": {},
        "node_modules/a/node_modules/@b/c": {"version": "2.0", "integrity": "sha512-AAH/", "license": "MIT"},
    }
    (tmp_path / "lock.json").write_text(json.dumps({"packages": packages}))
    (one,) = node_packages(tmp_path / "lock.json")
    assert (one.purl, one.group, one.name, one.licence) == ("pkg:npm/%40b/c@2.0", "@b", "c", "MIT")
    assert one.hashes == {("SHA-512", "0001ff")}
