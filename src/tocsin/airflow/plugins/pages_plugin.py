"""Adds the pages to Airflow: two in its navigation, and a tab on the page of each DAG."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

_AT = "tocsin"


class PagesPlugin(AirflowPlugin):
    """The pages, as Airflow's API server serves them."""

    name = "tocsin_pages"
    external_views: ClassVar[list[dict[str, Any]]] = [
        {
            "name": "Detectors",
            "href": f"{_AT}/detectors",
            "url_route": "detectors",
            "destination": "nav",
            "nav_top_level": True,
            "icon": f"{_AT}/static/bell.svg",
            "icon_dark_mode": f"{_AT}/static/bell-dark.svg",
        },
        {
            "name": "Quality",
            "href": f"{_AT}/quality/index.html",
            "url_route": "quality",
            "destination": "nav",
            "nav_top_level": True,
            "icon": f"{_AT}/static/check.svg",
            "icon_dark_mode": f"{_AT}/static/check-dark.svg",
        },
        {
            "name": "Job",
            "href": f"{_AT}/job?dag_id={{DAG_ID}}",
            "url_route": "job",
            "destination": "dag",
            "icon": f"{_AT}/static/bell.svg",
            "icon_dark_mode": f"{_AT}/static/bell-dark.svg",
        },
    ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """Made when it is asked for: all of Airflow's components load plugins, and one serves pages."""
        from tocsin.airflow.addresses import PREFIX  # noqa: PLC0415 - see above
        from tocsin.airflow.pages.pages_app import pages  # noqa: PLC0415 - likewise
        from tocsin.declare.settings import load_settings  # noqa: PLC0415 - likewise

        return [{"name": "tocsin", "app": pages(load_settings()), "url_prefix": PREFIX}]
