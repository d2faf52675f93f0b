from pathlib import Path

import pytest

from tocsin.setup.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A checkout with nothing in it."""
    (tmp_path / "locks").mkdir(parents=True)
    return Paths(tmp_path, tmp_path / ".tocsin")
