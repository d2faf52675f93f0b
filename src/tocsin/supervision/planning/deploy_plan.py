"""Say what a deploy of the present files would do to each job, compared with what runs, or ran last. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.model.detector import DetectorSpec
from tocsin.model.names import COMPUTE, DETECTOR, JobName
from tocsin.supervision.job_kinds import KINDS
from tocsin.supervision.job_states import Desired
from tocsin.supervision.planning.input_changes import changed_inputs, in_words, remarks
from tocsin.supervision.planning.start_record import StartRecord
from tocsin.supervision.snapshot import Snapshot

# They touch what is made of the state, how it is read, or where: never what is in it.
_KEEP_STATE = {"declared.levels", "platform"}
_KEEP_STATE_OF = ("kafka.", "spark.", "storage.")
_SHUFFLE, _ELSEWHERE = "spark.shuffle_partitions", "storage.checkpoints"
_OTHER_TOPIC = {"declared.sources", "kafka.topic_prefix"}
_NEW_STATE = {"declared.window", "declared.slide", "declared.time_zone", "computed.window", _SHUFFLE, _ELSEWHERE}
_ASK = "only Spark's plan tells whether the state still fits: tocsin plan --spark"

_JOINS = "it joins tables, so only its job can tell whether the state still fits"


class Effect(StrEnum):
    """What a deploy does to a job."""

    NOTHING = "nothing"
    RESTART = "restart"
    """It goes on where it stopped, on the same state if it keeps any."""
    NEW_STATE = "new state"
    RESTART_OR_NEW = "restart or new state"
    START = "start"
    STOP = "stop"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """The effect of a deploy on `job`, and the reasons in words."""

    job: str
    effect: Effect
    reasons: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StateNames:
    """The state that Spark's plans ask for.

    Attributes:
        next: by job, the name of the checkpoint that the present file asks for.
        present: the names of those that there are.
        running: the name of the one that the job ran on last, where that is known.
        faults: by job, what Spark refuses.
    """

    next: Mapping[str, str] = field(default_factory=dict)
    present: Mapping[str, frozenset[str]] = field(default_factory=dict)
    running: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """The files to deploy and what there is.

    Attributes:
        desired: the jobs that should run by the present files.
        stopped: those of them that an operator has stopped.
        starts: what each job was started with, the latest at the end.
        snapshot: a look at what runs, with the catalog of the present files.
        states: None without Spark.
    """

    desired: Mapping[str, Desired]
    stopped: frozenset[str]
    starts: Mapping[str, Sequence[StartRecord]]
    snapshot: Snapshot
    states: StateNames | None = None


def plan_job(deploy: Deploy, job: str) -> JobPlan:
    """Say what a deploy does to `job`."""
    wanted, facts = deploy.desired.get(job), deploy.snapshot.facts(job)
    faults = facts.faults or (deploy.states.faults.get(job, ()) if deploy.states else ())
    if faults:
        goes_on = "the running job keeps running" if facts.runs else "it is not started"
        return JobPlan(job=job, effect=Effect.REFUSED, reasons=[*faults, goes_on])
    if wanted is None or job in deploy.stopped:
        why = _why_not(deploy, job)
        return JobPlan(job=job, effect=Effect.STOP if facts.runs else Effect.NOTHING, reasons=[why])
    before = _last_start(deploy, job)
    if before is None:
        return _unrecorded(deploy, job, wanted)
    if before.spec == wanted.spec:
        besides = remarks(before.besides, wanted.besides)
        only = f"only the {' and the '.join(besides)} changed" if besides else ""
        return JobPlan(job=job, effect=Effect.NOTHING, reasons=[only] if only else [])
    names = changed_inputs(before.inputs, wanted.inputs)
    effect, more = _effect(deploy, job, names)
    return JobPlan(job=job, effect=effect, reasons=[*in_words(names, before.inputs, wanted.inputs), *more])


def _why_not(deploy: Deploy, job: str) -> str:
    facts = deploy.snapshot.facts(job)
    if not facts.declared:
        return "no file declares it any more"
    if facts.stage is not None and not facts.stage.runs:
        return f"its stage is {facts.stage}"
    return "an operator has stopped it" if job in deploy.stopped else "the settings ask for no such job"


def _last_start(deploy: Deploy, job: str) -> StartRecord | None:
    """Find what the process was started with that runs, else the last one; None when that was not recorded."""
    starts, leader = deploy.starts.get(job, ()), deploy.snapshot.facts(job).leader
    spec = leader.labels.spec if leader else deploy.snapshot.facts(job).past.spec
    last = starts[-1] if starts and not spec else None
    return next((one for one in starts if one.spec == spec), last)


def _unrecorded(deploy: Deploy, job: str, wanted: Desired) -> JobPlan:
    facts = deploy.snapshot.facts(job)
    spec = facts.leader.labels.spec if facts.leader else facts.past.spec
    if not spec:
        return JobPlan(job=job, effect=Effect.START, reasons=["it never ran here"])
    if spec == wanted.spec:
        return JobPlan(job=job, effect=Effect.NOTHING)
    what = "it was started by a version of Tocsin that did not record with what"
    return JobPlan(job=job, effect=Effect.RESTART_OR_NEW, reasons=[what])


def _effect(deploy: Deploy, job: str, names: Sequence[str]) -> tuple[Effect, list[str]]:
    """Find what happens to the state of `job` when `names` change, and what to add to the reasons."""
    kind, name = JobName.parse(job).kind, JobName.parse(job).name
    beside = ["it starts beside the running version and takes over"] if deploy.desired[job].hands_over else []
    if kind not in (DETECTOR, COMPUTE):
        return Effect.RESTART, ["it goes on where it stopped", *beside]
    if kind == COMPUTE and any(one == "code" or one.startswith(("declared.", "computed.")) for one in names):
        older = f"days that only history holds come back with: tocsin view rebuild {name}"
        return Effect.NEW_STATE, ["it is computed anew from the earliest event that Kafka holds", older]
    spec = KINDS[kind].declared
    declared = None if spec is None else spec(deploy.snapshot.catalog).get(name)
    keeps = _keeps_state(names, stateless=isinstance(declared, DetectorSpec) and not declared.keeps_state)
    if deploy.states is not None and job in deploy.states.next and not _OTHER_TOPIC.intersection(names):
        keeps = deploy.states.next[job] in deploy.states.present.get(job, ())
    if keeps is None:
        return Effect.RESTART_OR_NEW, [_ASK if deploy.states is None else _JOINS]
    if not keeps:
        what = "the state is built anew from the events of the last windows" if kind == DETECTOR else "built anew"
        return Effect.NEW_STATE, [what, *beside]
    resumes = deploy.states is not None and deploy.states.running.get(job) not in (None, deploy.states.next.get(job))
    return Effect.RESTART, ["on the state that an earlier version left" if resumes else "on the same state", *beside]


def _keeps_state(names: Sequence[str], *, stateless: bool) -> bool | None:
    """Return whether the state fits after `names` have changed; None when only a plan can tell."""
    if any(name in _NEW_STATE | _OTHER_TOPIC for name in names):
        return False
    rest = [name for name in names if name not in _KEEP_STATE and not name.startswith(_KEEP_STATE_OF)]
    rest = [name for name in rest if not name.endswith(".lateness")]
    return True if not rest or stateless else None
