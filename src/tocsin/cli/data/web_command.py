"""`tocsin web`: where views can be read over HTTP, and with which token."""

from __future__ import annotations

import typer

from tocsin.cli.output import line, note


def web() -> None:
    """Print the address of the page that shows the views, and how to ask the REST; exit code 1 if nothing serves it.

    `tocsin dev up` and Airflow keep the job `web` running while there are views.
    """
    from tocsin.declare.settings import load_settings
    from tocsin.dev.servers.ports import accepts
    from tocsin.views.rest.server import page_address, token_file

    settings = load_settings()
    address = page_address(settings)
    line(f"page   {address}")
    line(f'REST   curl -H "Authorization: Bearer $(cat {token_file(settings)})" {address.partition("#")[0]}views')
    if not accepts(settings.web.port):
        note(f"nothing serves port {settings.web.port}; start it: tocsin dev up, or python -m tocsin.job web")
        raise typer.Exit(1)
