"""The job of one flow: `flow.py NAME` runs `flows/NAME.py` on the events of its source until SIGTERM.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 asked to stop, 1 failed, 2 something must be
fixed first, 3 another copy runs, 4 the disk is full or not writable.
"""

import sys

from tocsin.flows.spark.flow_run import FlowRun
from tocsin.model.names import flow_job
from tocsin.sparkjob.entry import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__, job_of=flow_job, work_of=FlowRun))
