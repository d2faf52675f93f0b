"""Makes the versions of tables that are made of history: `refresh_tables.py SOURCE`, for spark-submit."""

import sys

from tocsin.job import main

if __name__ == "__main__":
    sys.exit(main(["refresh", *sys.argv[1:]]))
