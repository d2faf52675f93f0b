from pathlib import Path

import typer

from tocsin.cli.app import app
from tocsin.cli.detector_reference import reference_page
from tocsin.cli.reference import LISTS, ONES, page, verbs_of

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_what_the_command_says() -> None:
    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m tocsin.cli.reference > docs/cli.md"


def test_the_reference_of_detectors_is_what_they_declare() -> None:
    written = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert written == reference_page(ROOT), "run: python -m tocsin.cli.detector_reference > docs/reference.md"


def test_every_verb_that_reads_has_a_documented_shape() -> None:
    command = typer.main.get_command(app)
    with command.make_context("tocsin", [], resilient_parsing=True) as context:
        verbs = dict(verbs_of(command, context, "tocsin"))
    with_json = {name for name, verb in verbs.items() if any("--json" in option.opts for option in verb.params)}
    assert with_json == LISTS.keys() | ONES.keys()
    assert len(verbs) > 15


def test_a_name_that_two_shapes_share_leads_to_the_right_one() -> None:
    finding = page().split("### Finding\n")[1].split("###")[0]
    assert "| `origin` | string |" in finding
    quarantined = page().split("### QuarantinedRecord\n")[1].split("###")[0]
    assert "| `origin` | [RawPlace](#rawplace) |" in quarantined
