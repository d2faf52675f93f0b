"""Keep a copy of each file of networks that was usable, so that a bad new one stops no stream."""

from __future__ import annotations

from pathlib import Path

from tocsin.ingest.networks.network_ranges import read_content, read_ranges
from tocsin.model.errors import ConfigError, Fault
from tocsin.model.source import Enrichment, Source
from tocsin.project.source_file import digest_of
from tocsin.runtime.state_file import write_whole


def with_usable_networks(source: Source, folder: Path) -> tuple[Source, list[Fault]]:
    """Let `source` look up in copies in `folder`: of its files where they are usable, else of what they held before.

    A file is read once, so what is looked up in is what was found usable, though it may change meanwhile.

    Returns:
        The source, and what is wrong with the files.

    Raises:
        ConfigError: a file is not usable, and there is no copy. A retry does not help.
        OSError: the folder cannot be written.
    """
    faults: list[Fault] = []
    enrich: dict[str, Enrichment] = {}
    for column, one in source.enrich.items():
        kept = folder / f"{column}.csv"
        try:
            content = read_content(one.file)
            read_ranges(one.file, column, content)
            write_whole(kept, content)
        except ConfigError as error:
            if not kept.exists():
                raise
            faults += error.faults
        enrich[column] = one.model_copy(update={"file": kept, "digest": digest_of(kept)})
    return source.model_copy(update={"enrich": enrich}), faults
