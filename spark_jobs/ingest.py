"""The job of one source: `ingest.py NAME` turns records of `raw.NAME` into events, until SIGTERM."""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["ingest", *sys.argv[1:]]))
