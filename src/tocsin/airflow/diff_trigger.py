"""Restarts what has ended at once, and wakes the supervisor when what runs differs from what should run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import structlog
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from tocsin.declare.settings import load_settings
from tocsin.supervise.installed_jobs import InstalledJobs, Sender

log = structlog.get_logger()


class JobDiff(BaseEventTrigger):
    """Fires when a job is missing, dead, hung, unknown or changed, or a switch was turned.

    What has ended is started again right here, since a task takes seconds to begin. An event is a hint, and Airflow may
    lose one that comes while a supervisor runs: it is sent again as long as the difference lasts, ever more rarely.
    """

    def __init__(self, every: float = 1.5) -> None:
        super().__init__()
        self._every = every

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """See `BaseTrigger.serialize`."""
        return f"{JobDiff.__module__}.{JobDiff.__qualname__}", {"every": self._every}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for ever; the triggerer logs a look that fails and retries."""
        sender, jobs = Sender(), None
        while True:
            try:
                jobs = jobs or InstalledJobs(await asyncio.to_thread(load_settings), detached=True)
                found = await asyncio.to_thread(jobs.diff)
                is_restarted = await asyncio.to_thread(jobs.restart_ended) if found else False
                if is_restarted:
                    found = await asyncio.to_thread(jobs.diff)  # a run for nothing would take the CPU of the start
                if sender.sends(found, time.monotonic()):
                    yield TriggerEvent(sorted(found))
            except Exception:
                log.exception("jobs not readable, or not started")
            wait = time.sleep if jobs is None else jobs.runner.wait_for_end
            await asyncio.to_thread(wait, self._every)


JOB_DIFF = Asset("drift", watchers=[AssetWatcher(name="drift", trigger=JobDiff())])
