"""A program for Airflow's environment: asks for pages of reports as a user who may see some DAGs; statuses as JSON.

`ask_reports.py STATE DAGS PATH...`: DAGS is a JSON array.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from airflow.api_fastapi.core_api.security import get_user
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tocsin.airflow.pages import report_pages
from tocsin.airflow.pages.access import Rights
from tocsin.declare.settings import Settings

SEEN = frozenset(json.loads(sys.argv[2]))


def rights(user: Any, dags: Iterable[str]) -> Rights:
    """Instead of Airflow's own."""
    del user
    return Rights(SEEN & frozenset(dags), frozenset(), False)


def main() -> None:
    app = FastAPI()
    app.dependency_overrides[get_user] = lambda: "somebody"
    report_pages.add_reports(app, Settings(state=Path(sys.argv[1])))
    client = TestClient(app)
    with patch.object(report_pages, "rights", rights):
        print(json.dumps({path: client.get(path).status_code for path in sys.argv[3:]}))


if __name__ == "__main__":
    main()
