"""The job of one detector: `detect.py NAME` runs `detectors/NAME.py` on the stream of its source until SIGTERM.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 asked to stop, 1 failed, 2 something must be
fixed first, 3 another copy runs, 4 the disk is full or not writable.
"""

import sys

from tocsin.detect.spark.detection import Detection
from tocsin.model.names import detector_job
from tocsin.sparkjob.entry import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__, job_of=detector_job, work_of=Detection))
