"""A program for Airflow's environment: where it leads somebody who is not logged in, by what the browser asks for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow.api_fastapi.core_api.security import is_safe_url
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tocsin.airflow.access import AirflowAccess
from tocsin.airflow.addresses import PREFIX
from tocsin.declare.settings import Settings
from tocsin.web.app import pages


class Nobody(AirflowAccess):
    """Instead of Airflow's users."""

    async def user(self, request: Any) -> None:
        """Nobody is logged in."""


if __name__ == "__main__":
    airflow = FastAPI()
    airflow.mount(PREFIX, pages(Settings(state=Path(sys.argv[1])), Nobody()))
    client = TestClient(airflow, base_url="http://localhost:8080", follow_redirects=False)
    found = {}
    for kind in ("document", "iframe", "empty"):
        answer = client.get(f"{PREFIX}/alerts/1?a=b&c=d", headers={"Sec-Fetch-Dest": kind})
        found[kind] = [answer.status_code, answer.headers.get("location", "")]
    print(json.dumps(found | {"is_safe": is_safe_url(f"{PREFIX}/alerts/1?a=b&c=d")}))
