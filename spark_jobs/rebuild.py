"""Computes a view anew over sealed days of history, then asks its job for the rest: `rebuild.py VIEW`.

With `--missing leave-out` days are left out that are neither in history nor in Kafka; without it they are refused.
"""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["rebuild", *sys.argv[1:]]))
