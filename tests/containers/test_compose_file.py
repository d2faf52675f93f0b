"""docker-compose.yml, run in podman profile by profile; `python -m tests.containers` writes its page, too."""

import os
import shutil
from pathlib import Path

import pytest

from tests.containers.__main__ import WAYS, run
from tests.containers.engine import Engine
from tests.containers.stand_ins import provide
from tocsin.setup.paths import here

pytestmark = pytest.mark.timeout(3600)  # the first one builds the images


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Images of ours, and what stands in for those of others."""
    home = here().home / "containers"
    if not (home / "venv").is_dir() or shutil.which("podman") is None:
        pytest.skip("podman or podman-compose is missing: make setup-containers")
    if os.geteuid() != 0 or shutil.which("go") is None:
        pytest.skip("the stand-ins for images take root, and Go")
    engine = Engine(home)
    provide(engine)
    return engine


@pytest.mark.parametrize("profile", [*WAYS])
def test_a_profile_does_what_its_page_says(engine: Engine, tmp_path: Path, profile: str) -> None:
    table, went_well = run(engine, tmp_path, profile)
    assert went_well, table
