"""The job of one detector: `detect.py NAME` runs `detectors/NAME.py` on the stream of its source until SIGTERM."""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["detector", *sys.argv[1:]]))
