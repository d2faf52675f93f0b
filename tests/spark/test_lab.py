"""`tocsin.lab` on sealed days: the notebook of the docs from its first cell to its last, and other readers."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import seal_day
from tests.spark.sealing import login
from tocsin import lab
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings

DOCS = Path(__file__).parents[2] / "docs" / "write"
DAYS = [datetime.now(UTC).date() - timedelta(days=back) for back in (4, 3, 2)]
ACCOUNTS = (9, 12, 40)
"""So many accounts one address tries on each day; each of ten other addresses tries two."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("project")
    copy_project(folder)
    settings = Settings(state=folder / "state", project=folder)
    for day, accounts in zip(DAYS, ACCOUNTS, strict=True):
        tries = [("198.51.100.7", accounts), *((f"192.0.2.{n}", 2) for n in range(10))]
        pairs = [(address, f"u{n}") for address, count in tries for n in range(count)]
        seal_day(settings, day, (login(n, n, day=day, user_id=u, ip_address=a) for n, (a, u) in enumerate(pairs)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOCSIN_PROJECT", str(folder))
        patch.setenv("TOCSIN_STATE", str(settings.state))
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patch.setenv(name, str(folder / "jupyter"))
        yield folder


def test_the_notebook_of_the_docs_goes_from_events_to_a_detector(project: Path) -> None:
    book = nbformat.read(DOCS / "lab.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "outputs are stripped"
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(project)}}).execute()
    spec = read_spec(project / "detectors" / "password_spraying.py")
    assert spec.levels.email == 2, "of twelve addresses a day ten have the score 2: above it there is one a day"
    shown = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert any("image/png" in output.get("data", {}) for output in shown), "the plot"
    texts = "\n".join(output.get("text", "") + str(output.get("data", {}).get("text/plain", "")) for output in shown)
    assert "with the limit at 9 or more it would be no finding" in texts
    assert re.findall(r"198\.51\.100\.7 +(\d+)\.0", texts) == ["9", "12", "40"]


def test_duckdb_pandas_and_polars_read_sealed_days_as_the_docs_say(project: Path) -> None:
    section = (DOCS / "lab.md").read_text().partition("## DuckDB, pandas, Polars")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert [len(block.splitlines()) for block in blocks] == [3, 3, 3]
    found = []
    for block in blocks:
        names: dict[str, Any] = {"lab": lab}
        exec(block, names)
        found.append(names["failed"])
    in_duckdb, in_pandas, in_polars = dict(found[0]), found[1].to_dict(), dict(found[2].iter_rows())
    assert in_duckdb == in_pandas == in_polars
    assert sum(in_duckdb.values()) == sum(ACCOUNTS) + len(DAYS) * 20


def test_days_that_are_not_sealed_and_unknown_names_are_refused_before_spark_starts(project: Path) -> None:
    assert lab.dataset("logins", first=DAYS[1], last=DAYS[1]).count_rows() == ACCOUNTS[1] + 20
    with pytest.raises(ConfigError, match=rf"logins {DAYS[0] - timedelta(days=1)}: is not published"):
        lab.dataset("logins", first=DAYS[0] - timedelta(days=1))
    for function in (lab.events, lab.run, lab.scores):
        with pytest.raises(ConfigError, match="login_s"):
            function("login_s")
    for function in (lab.events, lab.dataset):
        with pytest.raises(ConfigError, match="0 is no number of days"):
            function("logins", days=0)
    with pytest.raises(ConfigError, match="is after"):
        lab.scores("failed_logins", first=DAYS[1], last=DAYS[0])
