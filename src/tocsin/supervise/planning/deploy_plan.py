"""Say what a deploy of the present files would do to each job, compared with what runs, or ran last. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import COMPUTE, DETECTOR, JobName
from tocsin.supervise.job_kinds import declared
from tocsin.supervise.job_states import Desired
from tocsin.supervise.job_status import JobFacts, Snapshot
from tocsin.supervise.planning.desired_inputs import StartRecord
from tocsin.supervise.planning.job_inputs import changed_inputs

# They touch what is made of the state, how it is read, or where: never what is in it.
_KEEP_STATE = {"declared.levels", "platform"}
_KEEP_STATE_OF = ("kafka.", "spark.", "storage.", "engine.")
_SHUFFLE, _ELSEWHERE = "spark.shuffle_partitions", "storage.checkpoints"
_OTHER_TOPIC = {"declared.sources", "kafka.topic_prefix"}
_NEW_STATE = {"declared.window", "declared.slide", "declared.time_zone", "computed.window", _SHUFFLE, _ELSEWHERE}


class Effect(StrEnum):
    """What a deploy does to a job."""

    NOTHING = "nothing"
    RESTART = "restart"  # it goes on where it stopped, on the same state if it keeps any
    # of a detector from the events of the last windows, of a view from the earliest event in Kafka
    NEW_STATE = "new state"
    # only Spark's plan tells which; of code that joins tables only the job itself
    RESTART_OR_NEW = "restart or new state"
    START = "start"
    STOP = "stop"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """The effect of a deploy on `job`, and the names of the inputs that changed, such as `declared.window`.

    Where it is no longer to run, the input is its `file`, `declared.stage`, `switch` or the `settings`; where that is
    refused, the faults of its file.
    """

    job: str
    effect: Effect
    changed: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class StateNames:
    """By job, the checkpoint that the present file asks for (`next`), those there are, and what Spark refuses."""

    next: Mapping[str, str] = field(default_factory=dict)
    present: Mapping[str, frozenset[str]] = field(default_factory=dict)
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Deploy:
    """The files to deploy and what there is.

    Attributes:
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
        return JobPlan(job=job, effect=Effect.REFUSED, changed=faults)
    if wanted is None or job in deploy.stopped:
        why = _why_not(facts, is_stopped=job in deploy.stopped)
        return JobPlan(job=job, effect=Effect.STOP if facts.runs else Effect.NOTHING, changed=[why])
    spec, starts = facts.leader.labels.spec if facts.leader else facts.past.spec, deploy.starts.get(job, ())
    last = starts[-1] if starts and not spec else None
    before = next((start for start in starts if start.spec == spec), last)
    if before is None:  # it never ran, or was started before inputs were recorded
        unrecorded = Effect.NOTHING if spec == wanted.spec else Effect.RESTART_OR_NEW
        return JobPlan(job=job, effect=unrecorded if spec else Effect.START)
    if before.spec == wanted.spec:
        return JobPlan(job=job, effect=Effect.NOTHING)
    names = changed_inputs(before.inputs, wanted.inputs)
    return JobPlan(job=job, effect=_effect(deploy, job, names), changed=names)


def _why_not(facts: JobFacts, *, is_stopped: bool) -> str:
    if not facts.declared:
        return "file"
    if facts.stage is not None and not facts.stage.runs:
        return "declared.stage"
    return "switch" if is_stopped else "settings"


def _effect(deploy: Deploy, job: str, names: Sequence[str]) -> Effect:
    kind, name = JobName.parse(job).kind, JobName.parse(job).name
    if kind not in (DETECTOR, COMPUTE):
        return Effect.RESTART
    if kind == COMPUTE and any(name == "code" or name.startswith(("declared.", "computed.")) for name in names):
        return Effect.NEW_STATE
    spec = declared(KINDS[kind], deploy.snapshot.catalog).get(name)
    keeps = _keeps_state(names, stateless=isinstance(spec, DetectorSpec) and not spec.keeps_state)
    if deploy.states is not None and job in deploy.states.next and not _OTHER_TOPIC.intersection(names):
        keeps = deploy.states.next[job] in deploy.states.present.get(job, ())
    if keeps is None:
        return Effect.RESTART_OR_NEW
    return Effect.RESTART if keeps else Effect.NEW_STATE


def _keeps_state(names: Sequence[str], *, stateless: bool) -> bool | None:
    """Return whether the state fits after `names` have changed; None when only a plan can tell."""
    if any(name in _NEW_STATE | _OTHER_TOPIC for name in names):
        return False
    rest = [name for name in names if name not in _KEEP_STATE and not name.startswith(_KEEP_STATE_OF)]
    rest = [name for name in rest if not name.endswith(".lateness")]
    return True if not rest or stateless else None
