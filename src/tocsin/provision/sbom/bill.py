"""Write the SBOM: one document of CycloneDX 1.5 with each package of each lock, the same for the same locks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tocsin.provision import jars
from tocsin.provision.paths import Paths
from tocsin.provision.sbom.lock_components import (
    LockedPackage,
    installed_licences,
    java_archives,
    node_packages,
    python_packages,
)

FILE = "sbom.cdx.json"
_LOCK = "tocsin:lock"


def write_bill(paths: Paths) -> Path:
    """Write the SBOM of what `make setup` installs into `paths.home`, and return the file.

    Raises:
        ConfigError: a lock cannot be read.
        OSError: the file cannot be written.
    """
    paths.home.mkdir(parents=True, exist_ok=True)
    file = paths.home / FILE
    file.write_text(json.dumps(bill(paths), indent=1) + "\n", encoding="utf-8")
    return file


def bill(paths: Paths) -> dict[str, Any]:
    """Make the document. It has no time and no number of its own, so that a change in it is a change of a lock."""
    components: dict[str, dict[str, Any]] = {}
    for lock, packages in _locked(paths).items():
        for package in packages:
            component = components.setdefault(package.purl, _component(package))
            component["properties"].append({"name": _LOCK, "value": lock})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "tocsin", "bom-ref": "tocsin"}},
        "components": [components[purl] for purl in sorted(components)],
    }


def _locked(paths: Paths) -> dict[str, list[LockedPackage]]:
    """List what is installed, by lock. What tests and benches use besides is left out."""
    folders = {"python": paths.venv, "airflow": paths.airflow_venv}
    found: dict[str, list[LockedPackage]] = {}
    for name, folder in folders.items():
        site = next(folder.glob("lib/python3*/site-packages"), folder)
        found[f"{name}.txt"] = list(python_packages(paths.locks / f"{name}.txt", installed_licences(site)))
    for name in ("spark", "broker", "s3"):
        found[f"{jars.LOCK}#{name}"] = list(java_archives(paths.locks / jars.LOCK, name))
    found["npm/package-lock.json"] = list(node_packages(paths.locks / "npm" / "package-lock.json"))
    return {lock: list(dict.fromkeys(packages)) for lock, packages in found.items()}


def _component(package: LockedPackage) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        **({"group": package.group} if package.group else {}),
        "name": package.name,
        "version": package.version,
        "hashes": [{"alg": algorithm, "content": digest} for algorithm, digest in sorted(package.hashes)],
        **({"licenses": [{"expression": package.licence}]} if package.licence else {}),
        "purl": package.purl,
        "properties": [],
    }
    return component
