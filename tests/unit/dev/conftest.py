from tests.unit.dev.airflow_api import api

__all__ = ["api"]
