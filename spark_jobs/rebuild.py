"""Computes a view anew over sealed days of history, then asks its job for the rest: `rebuild.py VIEW`.

With `--missing leave-out` days are left out that are neither in history nor in Kafka; without it they are refused.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 the rest is asked for, 1 failed, or days are
missing, 2 something must be fixed first, 3 the view is being rebuilt already, 4 the disk is full or not writable.
"""

import sys

from tocsin.backfill.spark.view_rebuild import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__))
