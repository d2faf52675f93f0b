"""Detectors over days of history: `backfill.py DETECTOR... [--day D ...] [--run-id ID]`, for spark-submit or by itself.

Without a day it runs all that need it: never run, failed, run by another version, or sealed again since.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 published or nothing to do, 10 published with a
warning, 20 a day is held by a critical verdict, 1 a day failed, 2 something must be fixed first, 3 other backfills work
on each of the detectors, 4 the disk is full or not writable.
"""

import sys

from tocsin.backfill.spark.backfill_run import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__))
