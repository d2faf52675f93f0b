"""Seals days of a source: `seal.py SOURCE [--day D ...] [--run-id ID]`, for spark-submit or by itself.

Without a day it seals all that need it.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 published or nothing to do, 10 published with a
warning, 20 critical and not published, 1 a day could not be sealed, 2 something must be fixed first, 3 another seal of
this source runs, 4 the disk is full or not writable.
"""

import sys

from tocsin.backfill.backfill_retention import tidy_after_sealing
from tocsin.history.sealing import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__, afterwards=tidy_after_sealing))
