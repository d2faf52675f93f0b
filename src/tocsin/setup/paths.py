"""Place what set-up makes. Nothing outside the checkout is written, except into the clients' own caches."""

from __future__ import annotations

import os
from pathlib import Path

from tocsin.declare.model.errors import ConfigError

PROJECT = "project"
"""The file in the generated folder that names the project whose packages were installed last."""


class Paths:
    """The places of one checkout."""

    def __init__(self, root: Path, home: Path, project: Path | None = None) -> None:
        self.root, self.home, self.project = root, home, project or root
        self.locks, self.venv, self.airflow_venv = root / "locks", root / ".venv", root / ".venv-airflow"
        self.bench, self.uv, self.ivy = home / "bench", home / "uv", home / "ivy"
        self.java = home / "java"

    def jars(self, configuration: str) -> Path:
        """Folder of the Java archives of one section of the lock: "spark", "broker", "s3" or "bench"."""
        return self.bench / "jars" if configuration == "bench" else self.home / "jars" / configuration

    def environment(self, name: str) -> Path:
        """Folder of an environment of the project."""
        return self.home / "environments" / name

    def package(self, name: str) -> Path:
        """Folder of an installed Python package; ConfigError when it is not installed."""
        found = sorted(self.venv.glob(f"lib/python3.*/site-packages/{name}"))
        if not found:
            raise ConfigError.one(self.venv, f"does not hold {name}; run: make setup")
        return found[-1]


def here() -> Paths:
    """The places of the checkout that this file belongs to; TOCSIN_HOME moves what is generated.

    The project is that of TOCSIN_PROJECT, else the one whose packages were installed last, else the checkout.
    """
    root = Path(__file__).resolve().parents[3]
    home = Path(os.environ.get("TOCSIN_HOME") or root / ".tocsin").absolute()
    project = os.environ.get("TOCSIN_PROJECT") or (
        (home / PROJECT).read_text(encoding="utf-8") if (home / PROJECT).exists() else root
    )
    return Paths(root, home, Path(project).absolute())
