"""Describe an incident for a mail: which job, its condition, the reason, and what to type."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.alerts.notify.mail.compose import Notice
from tocsin.model.names import DETECTOR, JobName
from tocsin.supervision.incidents.conditions import Incident
from tocsin.supervision.job_states import Condition

_RETRIED = "Retrying automatically."
_ADVICE = {
    Condition.CRASH_LOOP: _RETRIED,
    Condition.MISCONFIGURED: f"Mend what the log names. {_RETRIED}",
    Condition.LOCKED: f"Another process holds the checkpoint: look for a second installation. {_RETRIED}",
    Condition.NO_ROOM: f"Make room on the disk of the state folder. {_RETRIED}",
    Condition.HUNG: "The process was stopped, and is started again.",
    Condition.BROKEN: "A job that runs is left alone; it is not started again until the file is mended.",
    Condition.LAGGING: "Findings and mails come as much later. Nothing is lost while the topic keeps its records.",
    Condition.LATE: "These events count in no window of the stream; a backfill of the day adds them. If senders "
    "deliver late, raise `lateness` in the file of the source.",
    Condition.SILENT: "No detector of this source can find anything. Look at the senders. How long is too long: "
    "`silent_after` in the file of the source.",
    Condition.QUARANTINING: "The job goes on with the records that can be used. The first command shows the others "
    "and why; the second brings them back once the sender or the declaration is mended.",
}
_ONCE = "We will mail again only after an hour without this, when it comes back."


def advice(one: Incident) -> str:
    """Say what its reader should know, and when the next mail comes."""
    return f"{_ADVICE[one.condition]} {_ONCE}"


def commands(one: Incident) -> list[str]:
    """List what to type."""
    job = JobName.parse(one.job)
    if one.condition is Condition.QUARANTINING:
        return [f"tocsin quarantine {what} --source {job.name}" for what in ("list", "replay --all")]
    if one.condition is Condition.BROKEN:
        return ["tocsin check"]
    return [*(["tocsin check --plan"] if job.kind == DETECTOR and one.condition is Condition.MISCONFIGURED else []),
            f"tocsin status {one.job}", f"tocsin dev logs {one.job}"]  # fmt: skip


def notice_of(one: Incident, log: str, lines: Sequence[str]) -> Notice:
    """Describe the incident; `lines` are the end of the job's log, which is the file `log`."""
    return Notice(
        subject=f"[tocsin] {one.job}: {one.condition}",
        paragraphs=(one.reason, advice(one)),
        commands=commands(one),
        output=lines,
        output_of=f"The end of its log ({log})",
    )
