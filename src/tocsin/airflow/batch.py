"""The DAG that runs one detector over a range as a batch, through Spark's spark-submit."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from tocsin.airflow.program import Program
from tocsin.catalog import read_catalog
from tocsin.settings import load_settings

BATCH_DAG = "batch"
_DOC = """
Runs one detector over the windows that begin in a range, as a batch: on history where all of its days are published,
else on what Kafka still holds. It computes the same findings with the same ids as the stream; they replace what the
stream found there, and page nobody.

It is refused when the range is not over yet, or when neither holds all of it: nothing is written then.
"""


def batch_dag() -> DAG:
    """The DAG."""
    detectors = sorted(read_catalog(load_settings().project).detectors)
    moment = {"type": "string", "format": "date-time"}
    with DAG(
        BATCH_DAG,
        description="One detector over a range, as a batch",
        doc_md=_DOC,
        tags={"platform", "backfill"},
        schedule=None,
        catchup=False,
        is_paused_upon_creation=False,
        default_args={"owner": "tocsin", "retries": 0},
        params={
            "detector": Param(detectors[0] if detectors else None, type="string", enum=detectors or None),
            "start": Param(None, **moment, description_md="The first window that counts, UTC."),
            "end": Param(None, **moment, description_md="The first window that counts no more."),
        },
    ) as dag:
        Program(
            task_id="run",
            program="batch",
            arguments=[
                "{{ params.detector }}",
                "--start={{ params.start }}",
                "--end={{ params.end }}",
                "--run-id={{ run_id }}",
            ],
        )
    return dag
