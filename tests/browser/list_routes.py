"""A program for Airflow's environment: prints every route of the pages' application as JSON, path to methods."""

from __future__ import annotations

import json
from pathlib import Path

from fastapi.routing import APIRoute

from tocsin.airflow.access import AirflowAccess
from tocsin.airflow.addresses import PREFIX
from tocsin.declare.settings import Settings
from tocsin.web.app import pages

if __name__ == "__main__":
    app = pages(Settings(state=Path("nowhere")), AirflowAccess())
    print(
        json.dumps(
            [[PREFIX + route.path, sorted(route.methods or ())] for route in app.routes if isinstance(route, APIRoute)]
        )
    )
