"""Place what set-up makes. Nothing outside the checkout is written, except into the clients' own caches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tocsin.model.errors import ConfigError


@dataclass(frozen=True)
class Paths:
    """The places of one checkout.

    Attributes:
        root: the checkout.
        home: folder of everything generated besides the Python environments.
    """

    root: Path
    home: Path

    @property
    def locks(self) -> Path:
        """Folder of the lock files."""
        return self.root / "locks"

    @property
    def venv(self) -> Path:
        """The Python environment of Tocsin and its Spark jobs."""
        return self.root / ".venv"

    @property
    def airflow_venv(self) -> Path:
        """The Python environment of Airflow."""
        return self.root / ".venv-airflow"

    @property
    def bench(self) -> Path:
        """Folder of the peers that `make bench` measures: `venv` and `jars`."""
        return self.home / "bench"

    @property
    def uv(self) -> Path:
        """Folder that holds the pinned uv."""
        return self.home / "uv"

    @property
    def ivy(self) -> Path:
        """Ivy's cache, settings and log."""
        return self.home / "ivy"

    @property
    def node(self) -> Path:
        """Folder that holds `node_modules` of the mail sink."""
        return self.home / "node"

    @property
    def java(self) -> Path:
        """Folder of the generated Java launchers and trust stores."""
        return self.home / "java"

    def jars(self, configuration: str) -> Path:
        """Folder of the Java archives of one section of the lock: "spark", "broker" or "bench"."""
        return self.bench / "jars" if configuration == "bench" else self.home / "jars" / configuration

    def package(self, name: str) -> Path:
        """Folder of an installed Python package.

        Raises:
            ConfigError: when it is not installed.
        """
        found = sorted(self.venv.glob(f"lib/python3.*/site-packages/{name}"))
        if not found:
            raise ConfigError.one(self.venv, f"does not hold {name}; run: make setup")
        return found[-1]


def here() -> Paths:
    """The places of the checkout that this file belongs to; TOCSIN_HOME moves what is generated."""
    root = Path(__file__).resolve().parents[3]
    return Paths(root, Path(os.environ.get("TOCSIN_HOME") or root / ".tocsin").absolute())
