"""Adds the pages to Airflow: three in its navigation, and a tab on the page of each DAG."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

_AT = "tocsin"


class PagesPlugin(AirflowPlugin):
    """The pages, as Airflow's API server serves them."""

    name = "tocsin_pages"
    external_views: ClassVar[list[dict[str, Any]]] = [
        *(
            {
                "name": name,
                "href": f"{_AT}/{page}",
                "url_route": name.lower(),
                "destination": "nav",
                "nav_top_level": True,
                "icon": f"{_AT}/static/{icon}.svg",
                "icon_dark_mode": f"{_AT}/static/{icon}-dark.svg",
            }
            for name, page, icon in (
                ("Alerts", "alerts", "bell"),
                ("Jobs", "jobs", "jobs"),
                ("Quality", "quality/index.html", "check"),
            )
        ),
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
        from tocsin.airflow.access import AirflowAccess  # noqa: PLC0415 - see above
        from tocsin.airflow.addresses import PREFIX  # noqa: PLC0415 - likewise
        from tocsin.declare.settings import load_settings  # noqa: PLC0415 - likewise
        from tocsin.web.app import pages  # noqa: PLC0415 - likewise

        return [{"name": "tocsin", "app": pages(load_settings(), AirflowAccess()), "url_prefix": PREFIX}]
