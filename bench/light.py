"""A job that does nothing but live: `light.py HEARTBEAT REPORT --label ...`. It stands for one that takes no machine.

Standard library only, so that many of them take little.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Write the report, with the number of this process, every five seconds until told to stop."""
    beat, report = Path(sys.argv[1]), json.loads(sys.argv[2]) | {"pid": os.getpid()}
    draft = beat.with_suffix(".new")
    while True:
        draft.write_text(json.dumps(report), encoding="utf-8")
        draft.replace(beat)
        time.sleep(5)


if __name__ == "__main__":
    main()
