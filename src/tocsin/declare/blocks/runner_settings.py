"""The block of the settings about where jobs run."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.setting_blocks import SettingBlock

SUPERVISOR_POD = "supervisor"
# The group may read the mounted secrets and write the state folder; 10001 is the user of our image.
POD_SECURITY = {"runAsNonRoot": True, "fsGroup": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_LABEL = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class PodSettings(SettingBlock):
    """What pods of one kind request; see docs/run/kubernetes.md for what they do without.

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
        service_account: of the pods of jobs. Only those whose executors are pods too are given a token for the API.
        pods: by kind of job, or "supervisor": what their pods request.
        context: context of the kubeconfig; None for its current one, or for the account of the pod that asks.
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

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if strange := self.pods.keys() - (kinds := {*KINDS, SUPERVISOR_POD}):
            raise ValueError(f"pods.{min(strange)}: no kind of job; the kinds are {', '.join(sorted(kinds))}")
        if self.kind == "kubernetes" and not self.image:
            raise ValueError("kind kubernetes also needs image, the image that the jobs run")
        return self

    def volumes(self, state: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Write the volumes that every pod of ours has, and where they are mounted; `state` is the state folder."""
        volumes: list[dict[str, Any]] = [{"name": "state", "persistentVolumeClaim": {"claimName": self.state_claim}}]
        mounts: list[dict[str, Any]] = [{"name": "state", "mountPath": state}]
        if self.secret is not None:
            volumes.append({"name": "secrets", "secret": {"secretName": self.secret, "defaultMode": 0o440}})
            mounts.append({"name": "secrets", "mountPath": self.secret_folder, "readOnly": True})
        return volumes, mounts
