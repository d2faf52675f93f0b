from collections.abc import Iterator

import pytest

from tests.airflow.interpreter import Interpreter


@pytest.fixture(scope="package")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    one = Interpreter(tmp_path_factory.mktemp("interpreter"))
    yield one
    one.close()
