"""Detectors over days of history: `backfill.py DETECTOR... [--day D ...] [--run-id ID]`, for spark-submit or by itself.

Without a day it runs all that need it: never run, failed, run by another version, or sealed again since.
"""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["backfill", *sys.argv[1:]]))
