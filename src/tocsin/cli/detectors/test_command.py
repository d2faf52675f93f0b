"""`tocsin test`: run the cases of detectors in all ways, and show what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tocsin.cases.mutation import has_cases
from tocsin.cli import options
from tocsin.cli.output import counted, line, note, write
from tocsin.cli.project import load_project, load_settings
from tocsin.declare.model.errors import ConfigError

if TYPE_CHECKING:
    from tocsin.cases.case_report import DetectorOutcome, TestReport, Way

_Names = Annotated[list[str] | None, typer.Argument(help="Detectors; all that have cases if left out.")]
_Ways = Annotated[
    str | None,
    typer.Option(help="Run these alone, with commas: batch, one-batch, each-event, shuffled, restarted, real-time."),
]
_Mutate = Annotated[
    bool, typer.Option("--mutate", help="Also change each detector in small ways; a case must notice each of them.")
]

_Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", help="Use a JVM of its own, and not the engine that stays for ten minutes after the last test."
    ),
]


def test(
    names: _Names = None,
    ways: _Ways = None,
    mutate: _Mutate = False,
    fresh: _Fresh = False,
    json: options.Json = False,
) -> None:
    """Run the cases of detectors as a batch, on streams and in real-time mode; all must agree. Needs no Kafka.

    Exit code 1 when a case fails, a mutant survives, or a case cannot run.
    """
    from tocsin.platform.environments import by_their_pythons

    settings, in_ways = load_settings(), _ways(ways)
    flags = {"--mutate": mutate, "--fresh": fresh, "--json": json, f"--ways={ways}": ways}
    again = ["-m", "tocsin.cli", "test", *(flag for flag, is_set in flags.items() if is_set)]
    asked, code = by_their_pythons(settings, _names(names or []), lambda some: [*again, *some])
    if not asked:
        raise typer.Exit(code)
    from tocsin.cases.spark.case_lab import open_lab

    with open_lab(shares=not fresh) as lab:
        report = lab.run(settings, [*asked], in_ways, mutate=mutate)
    write(report, _show, json=json)
    if code or not all(detector.is_well for detector in report.detectors):
        raise typer.Exit(1)


def _names(names: list[str]) -> list[str]:
    settings, catalog = load_project()
    if names:
        return [catalog.detector(name).name for name in names]  # says which names there are
    if broken := [place for place in sorted(catalog.broken) if place.startswith("detectors/")]:
        note(f"not tested, since broken: {', '.join(broken)}; run: tocsin check", style="yellow")
    found = [name for name, spec in sorted(catalog.detectors.items()) if has_cases(spec)]
    if not found:
        what = "holds no detector with cases; docs/write/testing.md shows how to write some"
        raise ConfigError.one(settings.project / "detectors", what)
    return found


def _ways(text: str | None) -> list[Way]:
    from tocsin.cases.case_report import Way

    if text is None:
        return list(Way)
    asked = [way.strip() for way in text.split(",")]
    unknown = [way for way in asked if way not in list(Way)]
    if unknown:
        known = ", ".join(Way)
        raise typer.BadParameter(f"'{unknown[0]}' is none of {known}", param_hint="'--ways'")
    return [way for way in Way if way in asked]


def _show(report: TestReport) -> None:
    for outcome in report.detectors:
        _show_detector(outcome)
    cases = [case for detector in report.detectors for case in detector.cases]
    failed = [case for case in cases if case.problems]
    said = f"{counted(len(cases), 'case')} of {counted(len(report.detectors), 'detector')}"
    undecided = sum(bool(detector.faults) for detector in report.detectors)
    said += f", {len(failed)} failed" if failed else "" if undecided else " passed"
    said += f", {counted(undecided, 'detector')} not decided" if undecided else ""
    line(f"{said}, in {report.seconds:.1f} s")


def _show_detector(outcome: DetectorOutcome) -> None:
    from tocsin.cases.case_report import case_lines

    for fault in outcome.faults:
        line(fault, style="red")
    for text in (text for case in outcome.failed for text in case_lines(outcome.detector, case)):
        line(text, style="bold red" if text.startswith("FAILED") else "")
    taken = [way.way for way in outcome.ways if not way.skipped]
    passed = len(outcome.cases) - len(outcome.failed)
    if outcome.faults and outcome.cases:
        line(f"{outcome.detector}: not decided, since a way broke off", style="red")
    elif outcome.cases:
        generated = sum(case.is_generated for case in outcome.cases)
        more = f", {generated} of them made from the limits" if generated else ""
        line(f"{outcome.detector}: {passed} of {counted(len(outcome.cases), 'case')} passed{more}; {', '.join(taken)}",
             style="" if outcome.failed else "green")  # fmt: skip
    for way in outcome.ways:
        if way.skipped:
            line(f"  not {way.way}: {way.skipped}")
    for text in outcome.notes:
        line(f"  {text}")
    if outcome.mutants:
        killed = len(outcome.mutants) - len(outcome.survivors)
        line(f"  {killed} of {counted(len(outcome.mutants), 'mutant')} noticed")
    for mutant in outcome.survivors:
        line(f"  no case notices {mutant.change} (line {mutant.line})", style="red")
