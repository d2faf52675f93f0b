"""Programs of `spark_jobs/`, run by tasks through Spark's own spark-submit."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperatorLink
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tocsin.airflow.addresses import REPORTS, address_of
from tocsin.airflow.component import BACKFILL_POOL
from tocsin.airflow.dags.mail_dag import LostDaysMail
from tocsin.declare.settings import load_settings
from tocsin.platform import fork_server
from tocsin.platform.process_exit import ExitCode
from tocsin.platform.storage.s3_store import prepare_s3a
from tocsin.setup.java import in_words, log_and_archive
from tocsin.setup.paths import here

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_TAIL = "Last spark-submit output:"
_LINES = 20
_MEANING: dict[int, str] = {
    ExitCode.FAILED: "failed",
    ExitCode.MISCONFIGURED: "cannot work until a file or a setting is fixed",
    ExitCode.LOCKED: "found another run doing the same work",
    ExitCode.UNWRITABLE: "cannot write: the disk is full or read-only",
    ExitCode.REFUSED: "was blocked by the quality gate",
}


class Program(SparkSubmitOperator):
    """Runs `spark_jobs/<program>.py`: a warning is no failure, and what a retry does not fix is not retried."""

    def __init__(self, *, program: str, arguments: Sequence[str] = (), **options: Any) -> None:
        """`arguments` are templates, each of which becomes one argument."""
        jobs = here().root / "spark_jobs"
        jars = sorted(map(str, here().jars("spark").glob("*.jar")))
        shared: dict[str, Any] = {"pool": BACKFILL_POOL, "execution_timeout": timedelta(hours=6)}
        super().__init__(
            **shared | options,
            # An address would be looked for in the connection; a path starts the Spark of the jobs' environment.
            spark_binary=str(jobs / "submit.sh"),
            application=str(jobs / f"{program}.py"),
            application_args=list(arguments),
            name=program,
            jars=",".join(jars),
            driver_class_path=os.pathsep.join(jars),  # first, as in a job: else the archive of classes does not fit
            driver_memory="1g",
        )

    def execute(self, context: Any) -> None:
        """See `SparkSubmitOperator.execute`."""
        settings = load_settings()
        os.environ[fork_server.VARIABLE] = str(settings.state / fork_server.FOLDERS)
        storage = settings.storage
        prepare_s3a(storage, storage.remote_uri, Path())  # by the environment; the program gives its session options
        self.conf = {"spark.driver.extraJavaOptions": in_words(log_and_archive())}
        try:
            super().execute(context)
        except AirflowException as error:
            process = self._hook and self._hook._submit_sp  # the hook tells its code in a sentence alone
            code = process and process.returncode
            if code == ExitCode.WARNED:
                self.log.warning("published with a warning; the report says which: %s", address_of(REPORTS))
                return
            if not code:
                raise
            message = describe_end(f"{self.name}.py", code, str(error))
            lasts = code in (ExitCode.REFUSED, ExitCode.MISCONFIGURED)
            raise (AirflowFailException if lasts else AirflowException)(message) from error


def describe_end(program: str, code: int, output: str) -> str:
    """Describe how `program` ended, with its last lines of output, from the provider's message `output`.

    The provider repeats the whole command first, which does not help the reader of a mail.
    """
    by = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
    sentence = f"{program} {_MEANING.get(code, by)}; see the log of the task."
    tail = [] if code == ExitCode.REFUSED else output.partition(_TAIL)[2].strip().splitlines()[-_LINES:]
    return "\n".join([sentence, *(["Its last lines:"] if tail else []), *tail])


class ReportLink(BaseOperatorLink):
    """The button of a task that leads to what the gate has said."""

    name = "Quality report"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """See `BaseOperatorLink.get_link`."""
        page = operator.report(ti_key.run_id) if isinstance(operator, GatedProgram) else REPORTS
        return address_of(page)


class GatedProgram(Program):
    """One whose results a gate judges before they are published, day by day."""

    operator_extra_links = (ReportLink(),)

    def __init__(self, *, mail: LostDaysMail, **options: Any) -> None:
        """`mail` tells the owners when it fails."""
        super().__init__(retries=1, on_failure_callback=mail, **options)
        self.mail = mail

    def execute(self, context: Any) -> None:
        """See `SparkSubmitOperator.execute`."""
        try:
            super().execute(context)
        finally:
            for outcome in self.mail.outcomes(context["dag_run"].run_id):
                report = f" ({address_of(outcome.report)})" if outcome.report else ""
                self.log.info("%s %s: %s%s", outcome.subject, outcome.day, outcome.said, report)

    def report(self, run_id: str) -> str:
        """The page to open after the run, as `address_of` takes it: on its one day, else on all days."""
        found = [outcome.report for outcome in self.mail.outcomes(run_id) if outcome.report]
        return found[0] if len(found) == 1 else REPORTS
