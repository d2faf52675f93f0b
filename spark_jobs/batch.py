"""A detector over a past range: `batch.py NAME --start T --end T --run-id ID`, for spark-submit or by itself.

Settings come from `tocsin.toml` and TOCSIN_* variables. Exit codes: 0 done, 1 failed, 2 something must be fixed first,
3 another batch of this detector runs.
"""

import sys

from tocsin.spark.batch import main

if __name__ == "__main__":
    sys.exit(main(None, doc=__doc__))
