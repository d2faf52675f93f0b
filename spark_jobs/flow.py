"""The job of one flow: `flow.py NAME` runs `flows/NAME.py` on the events of its source until SIGTERM."""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["flow", *sys.argv[1:]]))
