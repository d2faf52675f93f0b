"""Follow the reports of the jobs, and count in the alerts DB what each job takes, whoever reads them."""

from __future__ import annotations

import contextlib

from tocsin.alerts.store.database import Database
from tocsin.alerts.store.job_usage import UsageTally
from tocsin.declare.model.errors import TransientError
from tocsin.declare.model.job_report import JobReport
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.job_reports import ReportReader
from tocsin.platform.kafka.retry import Backoff

_PAUSE_SECONDS = 5.0


class CountedReports:
    """Reads reports once, for who asks for the latest ones and for the usage of each day. For one thread."""

    def __init__(self, settings: Settings, database: Database) -> None:
        """Nothing is opened yet."""
        self._settings, self._database = settings, database
        self._usage = UsageTally()
        self._reader: ReportReader | None = None
        self._backoff, self._trouble = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS), ""

    def latest(self) -> dict[str, JobReport]:
        """See `ReportReader.latest`. Once Kafka is away it is not asked again for 5 seconds."""
        if not self._backoff.is_due:
            raise TransientError(self._trouble)
        try:
            self._reader = self._reader or ReportReader(self._settings, self._usage.take, timeout_seconds=1.0)
            return self._reader.latest()
        except TransientError as error:
            self._trouble = str(error)
            self._backoff.failed()
            raise

    def count(self) -> None:
        """Add what the jobs took since the last time; while Kafka is away there is nothing to add.

        Raises:
            TransientError: the DB cannot be written now; the next call makes up for it.
        """
        with contextlib.suppress(TransientError):
            self.latest()
        with self._database.write() as connection:
            self._usage.write(connection)
        self._usage.written()

    def close(self) -> None:
        """Leave Kafka."""
        if self._reader is not None:
            self._reader.close()
