"""Airflow as a person with a browser has it: its REST API, with a login."""

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class Api:
    """The API of a running Airflow, for one user."""

    def __init__(self, url: str, passwords: Path, user: str) -> None:
        self._url, self._token = url, ""
        login = {"username": user, "password": json.loads(passwords.read_text())[user]}
        self._token = self.call("POST", "/auth/token", login)["access_token"]

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer, out of JSON; HTTPError when it is refused."""
        headers = {"Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def page(self, path: str) -> str:
        """A page, as text; HTTPError when it is refused."""
        request = urllib.request.Request(self._url + path, headers={"Authorization": f"Bearer {self._token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def refusal(self, method: str, path: str, body: dict[str, Any]) -> int:
        """The status with which a call is refused; 0 when it is not."""
        try:
            self.call(method, path, body)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        return 0

    def dag(self, name: str) -> dict[str, Any] | None:
        """A DAG; None when there is none."""
        try:
            found: dict[str, Any] = self.call("GET", f"/api/v2/dags/{name}")
        except urllib.error.HTTPError as error:
            with error:
                return None
        return found

    def pause(self, dag: str, paused: bool) -> None:
        self.call("PATCH", f"/api/v2/dags/{dag}", {"is_paused": paused})

    def trigger(self, dag: str, **conf: str) -> str:
        """Start a run with these params; its id."""
        run = self.call("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf})
        name: str = run["dag_run_id"]
        return name

    def runs(self, dag: str) -> dict[str, str]:
        """The state of each run of a DAG, newest first; none while there is no such DAG."""
        if self.dag(dag) is None:
            return {}
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=-id&limit=100")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def states(self, dag: str, run: str) -> dict[str, str]:
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {one["task_id"]: one["state"] for one in found}

    def link(self, dag: str, run: str, task: str, name: str) -> str | None:
        """Where the button `name` of a task leads."""
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/links")
        address: str | None = found["extra_links"].get(name)
        return address

    def tries(self, dag: str, run: str, task: str) -> int:
        found = self.call("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}")
        return int(found["try_number"])

    def log(self, dag: str, run: str, task: str) -> str:
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/1"
        return json.dumps(self.call("GET", path)["content"])
