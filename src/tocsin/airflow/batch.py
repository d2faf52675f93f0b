"""The DAG that runs one detector over a range as a batch, through Spark's spark-submit."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Param

from tocsin.airflow.component import BACKFILL_POOL
from tocsin.catalog import read_catalog
from tocsin.provision.paths import here
from tocsin.settings import load_settings

BATCH_DAG = "batch"
_LOGGING = here().root / "src" / "tocsin" / "spark" / "log4j2.properties"
_DOC = """
Runs one detector over the windows that begin in a range, as a batch: on history where all of its days are published,
else on what Kafka still holds. It computes the same findings with the same ids as the stream; they replace what the
stream found there, and notify nobody.

It is refused when the range is not over yet, or when neither holds all of it: nothing is written then.
"""


def batch_dag() -> DAG:
    """The DAG."""
    detectors = sorted(read_catalog(load_settings().project).detectors)
    jobs = here().root / "spark_jobs"
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
        SparkSubmitOperator(
            task_id="run",
            pool=BACKFILL_POOL,
            execution_timeout=timedelta(hours=6),
            # An address would be looked for in the connection; a path starts the Spark of the jobs' environment.
            spark_binary=str(jobs / "submit.sh"),
            application=str(jobs / "batch.py"),
            application_args=[
                "{{ params.detector }}",
                "--start={{ params.start }}",
                "--end={{ params.end }}",
                "--run-id={{ run_id }}",
            ],
            name="batch {{ params.detector }}",
            jars=",".join(map(str, sorted(here().jars("spark").glob("*.jar")))),
            driver_memory="1g",
            conf={"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"},
        )
    return dag
