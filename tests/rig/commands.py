"""Commands of `tocsin` in one process, so that they share a JVM; as a program, it runs those that stdin names."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import IO, cast

from tocsin.setup.paths import here


class Commands:
    """A process that runs commands one after another; leaving the `with` block ends it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.rig.commands"],
            cwd=here().root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is not None:
            self._process.kill()
        self._process.communicate()

    def run(self, *words: str, code: int = 0) -> str:
        """What the command says on stdout; it must end with `code`."""
        print(json.dumps(words), file=cast(IO[str], self._process.stdin), flush=True)
        for line in cast(IO[str], self._process.stdout):  # Spark may write lines of its own
            if line.startswith('{"code"'):
                told = json.loads(line)
                assert told["code"] == code, f"{words}: {told}"
                return str(told["out"])
        raise AssertionError(f"{words}: the process has ended")


def main() -> None:
    from tests.rig.command_line import invoke  # noqa: PLC0415 - the process of the tests need not load the command

    for line in sys.stdin:
        result = invoke(json.loads(line))
        told = {"code": result.exit_code, "out": result.stdout, "err": result.stderr, "error": str(result.exception)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
