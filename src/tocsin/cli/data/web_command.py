"""`tocsin web`: where views can be read over HTTP, and with which token."""

from __future__ import annotations

from typing import Annotated

import typer

from tocsin.cli.output import line, note

_Serve = Annotated[bool, typer.Option("--serve", help="Serve until Ctrl-C, where nothing keeps the job running.")]


def web(serve: _Serve = False) -> None:
    """Print the address of the page that shows the views, and how to ask the REST; exit code 1 if nothing serves it.

    `tocsin dev up` and Airflow keep the job `web` running while there are views.
    """
    from tocsin.dev.servers.ports import accepts
    from tocsin.job import main
    from tocsin.model.names import WEB
    from tocsin.project.settings import load_settings
    from tocsin.views.rest.server import page_address, token_file

    settings = load_settings()
    address = page_address(settings)
    line(f"page   {address}")
    line(f'REST   curl -H "Authorization: Bearer $(cat {token_file(settings)})" {address.partition("#")[0]}views')
    if serve:
        raise typer.Exit(main([WEB]))
    if not accepts(settings.web.port):
        note(f"nothing serves port {settings.web.port}; start it: tocsin dev up, or tocsin web --serve")
        raise typer.Exit(1)
