"""`python -m tocsin.cases.spark PLACE [--once]`: the process that runs cases; see `tocsin.cases.worker_link`."""

import sys
from pathlib import Path

from tocsin.cases.spark.case_worker import serve

if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), once="--once" in sys.argv[2:]))
