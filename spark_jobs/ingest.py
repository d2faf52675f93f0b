"""The job of one source: `ingest.py NAME` turns records of `raw.NAME` into events, until SIGTERM.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 asked to stop, 1 failed, 2 something must be
fixed first, 3 another copy runs, 4 the disk is full or not writable.
"""

import sys

from tocsin.names import ingest_job
from tocsin.spark.entry import main
from tocsin.spark.ingest import Ingest

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__, job_of=ingest_job, work_of=Ingest))
