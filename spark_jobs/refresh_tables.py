"""Makes the versions of tables that are made of the history of a source: `refresh_tables.py SOURCE`, for spark-submit.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 made or nothing to do, 1 a table could not be
made, 2 something must be fixed first, 4 the disk is full or not writable.
"""

import sys

from tocsin.history.table_refresh import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__))
