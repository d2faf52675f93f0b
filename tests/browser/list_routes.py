"""A program for Airflow's environment: prints every route of the pages' application as JSON, path to methods."""

from __future__ import annotations

import json
from pathlib import Path

from starlette.routing import Route

from tocsin.airflow.addresses import PREFIX
from tocsin.airflow.pages.pages_app import pages
from tocsin.declare.settings import Settings

if __name__ == "__main__":
    app = pages(Settings(state=Path("nowhere")))
    print(
        json.dumps(
            [[PREFIX + route.path, sorted(route.methods or ())] for route in app.routes if isinstance(route, Route)]
        )
    )
