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


def end_with(parent: int) -> None:
    """Let this process be killed when the thread of `parent` that has started it ends; SystemExit if it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent ended before the command began")


def main() -> None:
    """Take the place of this process by the command."""
    command = sys.argv[2:]
    end_with(int(sys.argv[1]))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
