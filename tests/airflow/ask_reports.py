"""A program for Airflow's environment: asks for pages of reports as a user who may see some DAGs; statuses as JSON.

`ask_reports.py STATE DAGS PATH...`: DAGS is a JSON array.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tocsin.airflow.access import AirflowAccess
from tocsin.declare.settings import Settings
from tocsin.web.access import Rights, Role, User
from tocsin.web.app import pages

SEEN = frozenset(json.loads(sys.argv[2]))


class Somebody(AirflowAccess):
    """Instead of Airflow's users."""

    async def user(self, request: Any) -> User:
        del request
        return User("somebody", Role.READ)

    def check(self, request: Any, user: User, *, logs: bool = False) -> None:
        """May see some DAG."""

    def rights(self, user: User, dags: Iterable[str]) -> Rights:
        del user
        return Rights(SEEN & frozenset(dags), frozenset(), False)


if __name__ == "__main__":
    client = TestClient(pages(Settings(state=Path(sys.argv[1])), Somebody()))
    print(json.dumps({path: client.get(path).status_code for path in sys.argv[3:]}))
