"""Keep the state that a release leaves behind, so that the tests of every later one can go on with it.

`python -m tests.rig.kept_release` writes `releases/<version>.tar.gz` beside this file: a detector that has counted 60
failed logins in a window that is open, the alert of that, the versions that ran, and what landed.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from tests.rig.broker import Broker
from tests.rig.detect_job import Topic, text
from tests.rig.installation import READY_SECONDS, Installation
from tests.rig.observed import DETECT, SOURCE
from tests.rig.samples.project import copy_project
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import AlertFilter, list_alerts, open_store
from tocsin.history.land.landing import land
from tocsin.kafka.topic_set import partition_of
from tocsin.model.names import INDEXER
from tocsin.recovery.state_parts import copy_folder
from tocsin.sparkjob.query.checkpoint import read_committed

RELEASES = Path(__file__).parent / "releases"
FOLDER = "release"
"""Its name is the prefix of the topics that the checkpoint reads."""
COUNTED = 60
_KEPT = ("alerts.db", "checkpoints", "history", "form.json")


@dataclass(frozen=True)
class KeptRelease:
    """What is known of a kept state besides its files.

    Attributes:
        tocsin: the release.
        moment: event time of all that was counted, UTC.
        offsets: of the events topic, by partition: all before has been read.
    """

    tocsin: str
    moment: str
    offsets: dict[str, int]

    @property
    def event_time(self) -> datetime:
        return datetime.fromisoformat(self.moment)


def unpack(archive: Path, installation: Installation) -> KeptRelease:
    """Put project and state of `archive` in the place of those of `installation`."""
    folder = installation.settings.state.parent
    with tarfile.open(archive) as kept:
        kept.extractall(folder, filter="data")
    return KeptRelease(**json.loads((folder / "kept.json").read_text()))


def _keep(folder: Path, installation: Installation) -> KeptRelease:
    """Let the jobs run, and leave their project and state in `folder`."""
    settings = installation.settings
    copy_project(settings.project)  # with the limits that are shipped
    installation.make_topics()
    installation.start(DETECT, INDEXER)
    installation.await_ready(DETECT, INDEXER)
    # Days ago: whoever goes on with this will do so later still.
    moment = (datetime.now(UTC) - timedelta(days=3)).replace(hour=12, minute=0, second=1, microsecond=0)
    topic = Topic(settings)
    for _ in range(COUNTED):
        topic.event("ann", moment, datetime.now(UTC), 0)
    topic.tick(moment)
    topic.flush()
    with closing(open_store(settings)) as database:
        await_that(lambda: list_alerts(database, AlertFilter()), READY_SECONDS)
    offsets = {"0": COUNTED + 1, "1": 1}
    await_that(lambda: _committed(installation) == offsets, READY_SECONDS, lambda: _committed(installation))
    land(settings, installation.catalog.source(SOURCE))
    for job in (DETECT, INDEXER):
        assert installation.stop(job) == 0
    copy_folder(settings.state, folder / "state")
    copy_folder(settings.project, folder / "project")
    return KeptRelease(version("tocsin"), text(moment), offsets)


def _committed(installation: Installation) -> dict[str, int]:
    places: dict[str, int] = {}
    for query in installation.settings.checkpoint(DETECT).glob("*/query"):
        places |= {str(partition_of(place)[1]): end for place, end in (read_committed(query) or {}).items()}
    return places


def main() -> None:
    """Write the archive of this release."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        broker = Broker(folder / "broker")
        broker.start()
        try:
            with Installation(folder / FOLDER, broker) as installation:
                kept = _keep(folder / "kept", installation)
        finally:
            broker.stop()
        (folder / "kept" / "kept.json").write_text(json.dumps(asdict(kept), indent=1))
        target = RELEASES / f"{kept.tocsin}.tar.gz"
        target.parent.mkdir(exist_ok=True)
        with tarfile.open(target, "w:gz") as archive:
            for part in ("kept.json", "project", *(f"state/{one}" for one in _KEPT)):
                archive.add(folder / "kept" / part, part, filter=_anonymous)
        print(f"{target}: {target.stat().st_size} bytes")


def _anonymous(file: tarfile.TarInfo) -> tarfile.TarInfo:
    file.uid = file.gid = 0
    file.uname = file.gname = ""
    return file


if __name__ == "__main__":
    main()
