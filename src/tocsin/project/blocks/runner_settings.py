"""The block of the settings about where jobs run."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from tocsin.project.blocks.kafka_login import OPERATOR, ROLES
from tocsin.project.setting_blocks import SettingBlock

SUPERVISOR_POD = "supervisor"
_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
_PODS = ({*ROLES} - {OPERATOR}) | {SUPERVISOR_POD}


class PodSettings(SettingBlock):
    """What pods of one kind request; see docs/kubernetes.md for what they do without.

    Attributes:
        cpu: as Kubernetes writes it, such as "500m" or "2".
        memory_mb: what a job of this kind usually holds; the most that it may hold follows from that.
    """

    cpu: str | None = Field(default=None, pattern=r"^[0-9]+(\.[0-9]+)?m?$")
    memory_mb: int | None = Field(default=None, ge=32)


class RunnerSettings(SettingBlock):
    """Where the jobs run, and how a cluster is asked to run them.

    Attributes:
        kind: "local", processes of this machine; or "kubernetes", each job a StatefulSet of one replica.
        namespace: of the StatefulSets.
        image: of the jobs, with Tocsin and the project in the same folders as where the supervisor runs.
        state_claim: PersistentVolumeClaim of the state folder, which the supervisor and all jobs mount (ReadWriteMany).
        secret: Secret whose entries are mounted as files into `secret_folder`; None for none.
        secret_folder: where they appear, so that settings such as `kafka.sasl_password_file` can name them.
        service_account: of the pods of jobs, which are given no token for the API.
        pods: by kind of job, or "supervisor": what their pods request.
        context: context of the kubeconfig; None for its current one, or for the account of the pod that asks.
        timeout_seconds: for one answer of the API.
    """

    kind: Literal["local", "kubernetes"] = "local"
    namespace: str = Field(default="tocsin", pattern=_LABEL)
    image: str | None = None
    state_claim: str = Field(default="tocsin-state", pattern=_LABEL)
    secret: str | None = Field(default=None, pattern=_LABEL)
    secret_folder: str = Field(default="/etc/tocsin/secrets", pattern="^/")
    service_account: str = Field(default="tocsin-job", pattern=_LABEL)
    pods: dict[str, PodSettings] = Field(default_factory=dict)
    context: str | None = None
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if strange := self.pods.keys() - _PODS:
            raise ValueError(f"pods.{min(strange)}: no kind of job; the kinds are {', '.join(sorted(_PODS))}")
        if self.kind == "kubernetes" and not self.image:
            raise ValueError("kind kubernetes also needs image, the image that the jobs run")
        return self
