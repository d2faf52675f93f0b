from tests.unit.stack.airflow_api import api

__all__ = ["api"]
