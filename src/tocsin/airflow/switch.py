"""The pause switch of a DAG, as a task sees it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError


def is_paused(ti: Any, dag: str) -> bool | None:
    """The switch of `dag`; None when Airflow does not know that DAG (yet). It is asked, not its DB."""
    try:
        return bool(ti.get_dag(dag).is_paused)
    except AirflowRuntimeError as error:
        if (error.error.detail or {}).get("status_code") == HTTPStatus.NOT_FOUND:
            return None
        raise
