import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from tocsin.cli.app import app
from tocsin.cli.detector_reference import reference_page
from tocsin.cli.reference import SHAPES, page, verbs_of
from tocsin.cli.settings_reference import blocks, meanings_of, settings_page

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("file", "module", "made"),
    [
        ("run/cli.md", "reference", page),
        ("write/reference.md", "detector_reference", lambda: reference_page(ROOT)),
        ("run/settings.md", "settings_reference", settings_page),
    ],
)
def test_a_page_is_what_the_code_says(file: str, module: str, made: Callable[[], str]) -> None:
    written = (ROOT / "docs" / file).read_text(encoding="utf-8")
    assert written == made(), f"run: python -m tocsin.cli.{module} > docs/{file}"


def test_every_setting_has_a_meaning() -> None:
    silent = [
        f"{name}.{key}"
        for name, block in blocks().items()
        for key in block.model_fields.keys() - meanings_of(block).keys()
        if not any((f"{name}.{key}" if name else key) in {other, other.removesuffix(".NAME")} for other in blocks())
    ]
    assert silent == []
    assert len(blocks()) > 15


def test_every_verb_that_reads_has_a_documented_shape() -> None:
    command = typer.main.get_command(app)
    with command.make_context("tocsin", [], resilient_parsing=True) as context:
        verbs = dict(verbs_of(command, context, "tocsin"))
    with_json = {name for name, verb in verbs.items() if any("--json" in option.opts for option in verb.params)}
    assert with_json == SHAPES.keys()
    assert len(verbs) > 15


def test_a_name_that_two_shapes_share_leads_to_the_right_one() -> None:
    entries = dict(re.findall(r"^- \*\*(\w+)\*\*(?: \([^)]*\))?\. (.*)$", page(), re.MULTILINE))
    assert re.search(r"`origin`(, `\w+`)* \(string\)", entries["Finding"])
    assert "`origin` (RawPlace)" in entries["QuarantinedRecord"]
