import os

import pytest

from tests.rig.detect_job import job

__all__ = ["job"]


@pytest.fixture(scope="session")
def rounds() -> int:
    """How often the variable ROUNDS asks tests to kill; 0 for as often as they do by themselves."""
    return int(os.environ.get("ROUNDS", "0"))
