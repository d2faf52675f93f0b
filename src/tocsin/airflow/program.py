"""Programs of `spark_jobs/`, run by tasks through Spark's own spark-submit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tocsin.airflow.addresses import REPORTS, address_of
from tocsin.airflow.command import MISCONFIGURED
from tocsin.airflow.component import BACKFILL_POOL
from tocsin.provision.paths import here

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

WARNED, REFUSED = 10, 20
"""Exit codes of a program that judges: something was published with a warning; something is held by a gate."""

_LOGGING = here().root / "src" / "tocsin" / "spark" / "log4j2.properties"
_CODE = re.compile(r"Error code is: (\d+)")


class Program(SparkSubmitOperator):
    """Runs `spark_jobs/<program>.py`: a warning is no failure, and what a retry does not mend is not retried."""

    def __init__(self, *, program: str, arguments: Sequence[str] = (), **options: Any) -> None:
        """Make the task.

        Args:
            program: its name.
            arguments: templates, each of which becomes one argument.
            options: of any operator.
        """
        jobs = here().root / "spark_jobs"
        shared: dict[str, Any] = {"pool": BACKFILL_POOL, "execution_timeout": timedelta(hours=6)}
        super().__init__(
            **shared | options,
            # An address would be looked for in the connection; a path starts the Spark of the jobs' environment.
            spark_binary=str(jobs / "submit.sh"),
            application=str(jobs / f"{program}.py"),
            application_args=list(arguments),
            name=program,
            jars=",".join(map(str, sorted(here().jars("spark").glob("*.jar")))),
            driver_memory="1g",
            conf={"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"},
        )

    def execute(self, context: Any) -> None:
        """See `SparkSubmitOperator.execute`."""
        try:
            super().execute(context)
        except AirflowException as error:
            found = _CODE.search(str(error))
            code = int(found[1]) if found else None
            if code == WARNED:
                self.log.warning("published with a warning; the report says which: %s", address_of(REPORTS))
                return
            if code in (REFUSED, MISCONFIGURED):
                raise AirflowFailException(str(error)) from error
            raise


class ReportLink(BaseOperatorLink):
    """The button of a task that leads to what the gate has said."""

    name = "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """See `BaseOperatorLink.get_link`."""
        page = operator.report(ti_key.run_id) if isinstance(operator, GatedProgram) else REPORTS
        return address_of(page)


class GatedProgram(Program):
    """One whose results a gate judges before they are published."""

    operator_extra_links = (ReportLink(),)

    def report(self, run_id: str) -> str:
        """The page to open after the run, as `address_of` takes it."""
        del run_id
        return REPORTS
