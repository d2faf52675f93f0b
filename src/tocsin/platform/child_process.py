"""Become a command that ends when its parent ends, however that one ends: `python child_process.py PARENT COMMAND...`.

Linux sends SIGKILL to the process when the thread that started it is gone; elsewhere the command simply runs. A program
of its own, since code between fork and exec of a parent with threads may never come back. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def prefix() -> list[str]:
    """Give the words to put before a command, so that it ends with the thread that starts it; see the module."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid())]


def main() -> None:
    """Take the place of this process by the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent ended before the command began")
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
