"""Jobs that do nothing but live: light enough to start dozens."""

import os
import sys
from pathlib import Path

from tocsin.supervise.runners.runner import Labels, Launch

SLEEP = "import time; time.sleep(600)"
OBEDIENT = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
WITH_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
while time.process_time() < 0.1:  # so that its CPU time shows: a start alone may stay below a tick of the clock
    pass
time.sleep(600)
"""
WITH_GRANDCHILD = """
import subprocess, sys, time
code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid)"
subprocess.run([sys.executable, "-c", code])
time.sleep(600)
"""


def launch(folder: Path, labels: Labels, code: str, **environment: str) -> Launch:
    """A dummy of `code`, started as jobs are."""
    return Launch(
        labels=labels,
        command=(sys.executable, "-c", code, *labels.arguments()),
        environment={"PATH": os.environ["PATH"], **environment},
        directory=folder,
        log=folder / "logs" / f"{labels.job.replace(':', '__')}.log",
    )
