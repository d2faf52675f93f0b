"""`tocsin web`: where the pages are, and the passwords of who logs in there."""

from __future__ import annotations

import typer

from tocsin.cli.output import line, note

app = typer.Typer(help="Show the address of the pages and who may log in; hash passwords.", invoke_without_command=True)


@app.callback()
def web(context: typer.Context) -> None:
    """Show the address of the pages, and who may log in."""
    if context.invoked_subcommand is not None:
        return
    from tocsin.declare.settings import load_settings
    from tocsin.dev.servers.ports import accepts
    from tocsin.web.passwords import FIRST_USER, first_password_file

    settings = load_settings()
    if not accepts(settings.web.port):
        what = f"nothing serves the pages on port {settings.web.port}"
        note(f"{what}; start it: tocsin dev up, or python -m tocsin.job web")
    line(settings.web.public_address)
    names = ", ".join(f"{name} ({user.role})" for name, user in settings.web.users.items())
    if settings.web.oidc:
        names = ", ".join(filter(None, (names, f"users of {settings.web.oidc.issuer}")))
    if file := first_password_file(settings):
        names = f"{FIRST_USER}, with the password in {file}"
    line(f"log in as {names}")


@app.command("hash-password")
def hash_password(
    password: str = typer.Option(
        ..., prompt=True, hide_input=True, confirmation_prompt=True, help="Asked for if not given."
    ),
) -> None:
    """Hash a password for `web.users` in tocsin.toml; it is asked for, so that no history of a shell has it."""
    from tocsin.web import passwords

    line(passwords.hash_password(password))
