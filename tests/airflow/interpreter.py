"""Python with Airflow, for the programs of this folder. To import Airflow takes longer than any of them: it stays."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tocsin.setup.paths import here

PROGRAMS = Path(__file__).parent


class Interpreter:
    """One process of Airflow's environment; each program runs in a child of it."""

    def __init__(self, folder: Path) -> None:
        """`folder` is for what it and the programs write."""
        self._files = [str(folder / "stdout"), str(folder / "stderr")]
        command = [str(here().airflow_venv / "bin" / "python"), str(PROGRAMS / "run_programs.py")]
        environment = self._environment(AIRFLOW_HOME=str(folder / "airflow"))
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def ask(self, program: str, *words: str, **environment: str) -> Any:
        """Run `program`; the JSON of the last line that it prints."""
        return json.loads(self.run(program, *words, **environment).splitlines()[-1])

    def run(self, program: str, *words: str, **environment: str) -> str:
        """Run `program`, which is to succeed; what it prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = [[str(PROGRAMS / program), *words], self._environment(**environment), self._files]
        self._process.stdin.write(json.dumps(request) + "\n")
        code = self._process.stdout.readline().strip()
        said, complained = (Path(file).read_text(encoding="utf-8") for file in self._files)
        assert code == "0", complained
        return said

    @staticmethod
    def _environment(**own: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "TOCSIN"))}
        return kept | own
