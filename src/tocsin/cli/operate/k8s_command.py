"""`tocsin k8s`: the manifests of an installation whose jobs run on Kubernetes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tocsin.cli.output import line

app = typer.Typer(help="Run the jobs on Kubernetes.", no_args_is_help=True)


@app.command()
def render(
    storage: Annotated[str, typer.Option(help="Size of the volume of the state folder.")] = "20Gi",
    storage_class: Annotated[
        str | None, typer.Option(help="One that several nodes can mount; the cluster's default without.")
    ] = None,
) -> None:
    """Print the manifests: namespace, accounts and rights, settings, volume, supervisor.

    The settings need `runner.kind = "kubernetes"` and an image; Kafka and the databases that they name are given. Apply
    the manifests with `tocsin k8s render | kubectl apply -f -`: the supervisor then starts the jobs.
    """
    from tocsin.declare.settings import load_settings
    from tocsin.supervise.runners.cluster_manifests import manifests

    for manifest in manifests(load_settings(), storage=storage, storage_class=storage_class):
        line("---")
        line(_as_yaml(manifest))


def _as_yaml(manifest: dict[str, Any]) -> str:
    """Write YAML as people do: lists indented, nothing by reference."""
    import yaml  # type: ignore[import-untyped]

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML ships no types
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

        def ignore_aliases(self, data: object) -> bool:
            return True

    return str(yaml.dump(manifest, Dumper=Dumper, sort_keys=False, width=100)).rstrip()
