"""Write docs/write/reference.md from the declarations of detectors: `python -m tocsin.cli.detector_reference > FILE`.

It reads the detectors of the current folder, which is the repository. A test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tocsin.declare.declaration import read_spec
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.durations import exact_text
from tocsin.detect.explanation import keyword_meanings

_INTRODUCTION = """# Reference of detectors

Written by `python -m tocsin.cli.detector_reference`; change the declarations, not this page.

## Keywords of `@detector`

All are literals, since the file is read without being run. Durations are written as `"10 seconds"` or `"1 hour"`.
`tocsin explain NAME` shows what holds for one detector. [detectors.md](detectors.md) tells how to write one.
"""
_SHIPPED = "## Detectors that ship\n\nIn `detectors/`, and each in a project of its own in `examples/`.\n"


def reference_page(root: Path) -> str:
    """Write the whole page, about the detectors of the repository in `root`."""
    keywords = [
        (f"`{keyword.name}`", keyword.form, "required" if keyword.default is None else keyword.default, keyword.meaning)
        for keyword in keyword_meanings()
    ]
    files = sorted([*root.glob("detectors/[!_]*.py"), *root.glob("examples/*/detectors/[!_]*.py")])
    shipped = [_row(read_spec(path), path.relative_to(root)) for path in files]
    columns = ("detector", "source", "window", "e-mail above", "urgent above", "lines", "what it finds")
    parts = [
        _INTRODUCTION,
        *_table(("keyword", "what one writes", "default", "meaning"), keywords),
        "\n" + _SHIPPED,
        *_table(columns, shipped),
    ]
    return "\n".join(parts) + "\n"


def _row(spec: DetectorSpec, path: Path) -> tuple[str, ...]:
    limits = ("" if limit is None else f"{limit:g}" for limit in (spec.levels.email, spec.levels.urgent))
    window = exact_text(spec.window) if spec.window else spec.function if spec.has_step else "each event"
    lines = len(spec.path.read_text(encoding="utf-8").splitlines())
    return (f"[{spec.name}](../../{path})", ", ".join(spec.sources), window, *limits, str(lines), spec.title)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


if __name__ == "__main__":
    sys.stdout.write(reference_page(Path.cwd()))
