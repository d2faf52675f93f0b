from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.web.metrics.installation import Installation
from tocsin.web.metrics import exporter


@pytest.fixture
def installation(tmp_path: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(exporter, "_SECONDS", 0.0)  # each scrape reads
    made = Installation(tmp_path / "project", migrated_file)
    yield made
    made.store.close()
