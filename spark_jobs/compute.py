"""The job that computes one view: `compute.py NAME` keeps the rows of `views/NAME.py` up to date until SIGTERM."""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["compute", *sys.argv[1:]]))
