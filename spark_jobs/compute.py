"""The job that computes one view: `compute.py NAME` keeps the rows of `views/NAME.py` up to date until SIGTERM.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 asked to stop, 1 failed, 2 something must be
fixed first, 3 another copy runs, 4 the disk is full or not writable.
"""

import sys

from tocsin.model.names import compute_job
from tocsin.sparkjob.entry import main
from tocsin.views.spark.computation import Computation

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__, job_of=compute_job, work_of=Computation))
