"""Seals days of a source: `seal.py SOURCE [--day D ...] [--run-id ID]`, for spark-submit or by itself.

Without a day it seals all that need it.
"""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["seal", *sys.argv[1:]]))
