"""The job of one source: `ingest.py NAME` turns records of `raw.NAME` into events, until SIGTERM.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 asked to stop, 1 failed, 2 something must be
fixed first, 3 another copy runs, 4 the disk is full or not writable.
"""

import sys

from tocsin.ingest.spark.ingestion import Ingest
from tocsin.model.names import ingest_job
from tocsin.sparkjob.entry import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__, job_of=ingest_job, work_of=Ingest))
