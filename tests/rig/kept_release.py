"""Keep the state that a release leaves behind, so that the tests of every later one can go on with it.

`python -m tests.rig.kept_release` writes `releases/<version>.tar.gz` beside this file: a detector that has counted 60
failed logins in a window that is open, the alert of that, the versions that ran, and what landed; and 60 lines that an
ingest has parsed, a flow has made words of, and a view has counted.
"""

import json
import shutil
import tarfile
import tempfile
from collections import defaultdict
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

from tests.rig.broker import Broker
from tests.rig.detect_job import Topic, text
from tests.rig.installation import READY_SECONDS, Installation
from tests.rig.landing import land
from tests.rig.observed import DETECT, SOURCE
from tests.rig.samples.project import ROOT, copy_project
from tests.rig.waiting import await_that
from tocsin.alerts.store.queries import AlertFilter, list_alerts, open_store
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.names import INDEXER, compute_job, flow_job, ingest_job, view_job
from tocsin.declare.settings import Settings
from tocsin.ingest.producer import LineProducer
from tocsin.platform.kafka.topic_set import partition_of
from tocsin.spark.query.checkpoint import read_committed
from tocsin.views.row_query import ViewReader
from tocsin.views.row_store import RowStore, store_path

RELEASES = Path(__file__).parent / "releases"
FOLDER = "release"
"""Its name is the prefix of the topics that the checkpoints read."""
COUNTED = 60
LINES, WORDS, VIEW = "lines", "words", "word_totals"
JOBS = (DETECT, INDEXER, ingest_job(LINES), flow_job(WORDS), compute_job(VIEW), view_job(VIEW))
_KEPT = ("alerts.db", "checkpoints", "history", "views", "form.json")
_TOTALS = f'''"""How often each word has occurred."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="{WORDS}", key="word", window=None, owner="platform@example.com", stage="live")
def view(events: DataFrame) -> DataFrame:
    return events.groupBy("word").agg(F.count("*").alias("count"))
'''


@dataclass(frozen=True)
class KeptRelease:
    """What is known of a kept state besides its files.

    Attributes:
        tocsin: the release.
        moment: event time of all that the detector has counted, UTC.
        offsets: by topic and partition: all before has been read.
    """

    tocsin: str
    moment: str
    offsets: dict[str, dict[str, int]]

    @property
    def event_time(self) -> datetime:
        return datetime.fromisoformat(self.moment)


def unpack(archive: Path, installation: Installation) -> KeptRelease:
    """Put project and state of `archive` in the place of those of `installation`."""
    folder = installation.settings.state.parent
    with tarfile.open(archive) as kept:
        kept.extractall(folder, filter="data")
    installation.catalog = read_catalog(installation.settings.project)
    return KeptRelease(**json.loads((folder / "kept.json").read_text()))


def send_lines(installation: Installation, count: int, word: str) -> None:
    with LineProducer(installation.settings, installation.catalog.source(LINES)) as producer:
        for _ in range(count):
            producer.send(f"{text(datetime.now(UTC))} writer {word}".encode())


def totals(settings: Settings) -> dict[str, int]:
    """Count by word, as readers of the view see it."""
    path = store_path(settings, VIEW)
    if not path.exists():
        return {}
    with closing(ViewReader(path)) as reader:
        return {str(row.key["word"]): row.values["count"] for row in reader.page().rows}


def _declare(project: Path) -> None:
    copy_project(project)  # with the limits that are shipped
    example = ROOT / "examples" / "words"
    for path in (f"sources/{LINES}.toml", f"sources/{WORDS}.toml", f"flows/{WORDS}.py"):
        (project / path).parent.mkdir(exist_ok=True)
        shutil.copy(example / path, project / path)
    (project / "views").mkdir()
    (project / "views" / f"{VIEW}.py").write_text(_TOTALS)


def _keep(folder: Path, installation: Installation) -> KeptRelease:
    """Let the jobs run, and leave their project and state in `folder`."""
    settings = installation.settings
    _declare(settings.project)
    installation.catalog = read_catalog(settings.project)
    installation.make_topics()
    installation.start(*JOBS)
    installation.await_ready(*JOBS)
    # Days ago: whoever goes on with this will do so later still.
    moment = (datetime.now(UTC) - timedelta(days=3)).replace(hour=12, minute=0, second=1, microsecond=0)
    topic = Topic(settings)
    for _ in range(COUNTED):
        topic.event("ann", moment, datetime.now(UTC), 0)
    topic.tick(moment)
    topic.flush()
    send_lines(installation, COUNTED, "tocsin")
    send_lines(installation, 1, "bell")  # which no later line changes: only the read model has it
    with closing(open_store(settings)) as database:
        await_that(lambda: list_alerts(database, AlertFilter()), READY_SECONDS)
    offsets = {"0": COUNTED + 1, "1": 1}
    name = settings.names.events(SOURCE)
    await_that(lambda: _reached(settings)[name] == offsets, READY_SECONDS, lambda: _reached(settings))
    await_that(lambda: totals(settings) == {"tocsin": COUNTED, "bell": 1}, READY_SECONDS, lambda: totals(settings))
    land(settings, installation.catalog.source(SOURCE))
    for job in JOBS:
        assert installation.stop(job) == 0
    passing = shutil.ignore_patterns("lock", "*.lock", "jvm", ".*", "*.draft.json")
    shutil.copytree(settings.state, folder / "state", ignore=passing)
    shutil.copytree(settings.project, folder / "project", ignore=passing)
    return KeptRelease(version("tocsin"), text(moment), dict(_reached(settings)))


def _reached(settings: Settings) -> defaultdict[str, dict[str, int]]:
    """The next offset of each partition, by topic, as the checkpoints and the read model have it."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for query in (settings.state / "checkpoints").rglob("query"):
        for place, end in (read_committed(query) or {}).items():
            topic, partition = partition_of(place)
            found[topic][str(partition)] = end
    if store_path(settings, VIEW).exists():
        with closing(RowStore(store_path(settings, VIEW))) as store:
            found[settings.names.view(VIEW)] = {str(partition): end for partition, end in store.offsets().items()}
    return found


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
