"""The block of the settings about where jobs run."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.setting_blocks import SettingBlock

JOB_ACCOUNT, STATE_CLAIM, SECRET_FOLDER = "tocsin-job", "tocsin-state", "/etc/tocsin/secrets"
"""The service account of the pods of jobs, the claim of the state folder, and where the Secret appears."""
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
        secret: Secret whose entries are mounted as files into /etc/tocsin/secrets, where settings such as
            `kafka.sasl_password_file` can name them; None for none.
        pods: by kind of job, what their pods request.
    """

    kind: Literal["local", "kubernetes"] = "local"
    namespace: str = Field(default="tocsin", pattern=_LABEL)
    image: str | None = None
    secret: str | None = Field(default=None, pattern=_LABEL)
    pods: dict[str, PodSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if strange := self.pods.keys() - KINDS.keys():
            raise ValueError(f"pods.{min(strange)}: no kind of job; the kinds are {', '.join(sorted(KINDS))}")
        if self.kind == "kubernetes" and not self.image:
            raise ValueError("kind kubernetes also needs image, the image that the jobs run")
        return self

    def volumes(self, state: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Write the volumes that every pod of ours has, and where they are mounted; `state` is the state folder."""
        volumes: list[dict[str, Any]] = [{"name": "state", "persistentVolumeClaim": {"claimName": STATE_CLAIM}}]
        mounts: list[dict[str, Any]] = [{"name": "state", "mountPath": state}]
        if self.secret is not None:
            volumes.append({"name": "secrets", "secret": {"secretName": self.secret, "defaultMode": 0o440}})
            mounts.append({"name": "secrets", "mountPath": SECRET_FOLDER, "readOnly": True})
        return volumes, mounts
