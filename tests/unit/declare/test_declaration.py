"""Reading what a detector declares: complete, without importing it, and with every fault told at once."""

from datetime import timedelta
from pathlib import Path

import pytest

from tocsin.declare.blocks.spark_settings import ResourceSettings
from tocsin.declare.declaration import read_flow, read_spec, read_view
from tocsin.declare.model.detector import Entities, Levels, ScoreKind, Stage
from tocsin.declare.model.detector_guide import DetectorGuide, link_of
from tocsin.declare.model.errors import ConfigError

GOOD = '''"""Bursts.

More.
"""
import nothing_like_this_is_installed
from tocsin import Levels, detector

ACTION = "login failed"


def wanted(events):
    """The rows that count."""
    return events.where(f"action = '{ACTION}'")


@detector(source="logins", entity="user_id", window="10 seconds", levels=Levels(email=50, urgent=100),
          owner="a@example.com", runbook="docs/r.md", stage="live")
def detect(events):
    """Count them."""
    return wanted(events).groupBy("window", "user_id").count()
'''


def written(tmp_path: Path, text: str, name: str = "bursts") -> Path:
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    return path


def faults_of(path: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_spec(path)
    return [str(fault).removeprefix(str(path)) for fault in caught.value.faults]


def test_reads_everything_without_importing(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, GOOD))
    assert (spec.name, spec.sources, spec.entity) == ("bursts", ("logins",), ("user_id",))
    assert spec.window == timedelta(seconds=10)
    assert spec.levels == Levels(email=50, urgent=100)
    assert (spec.owner, spec.runbook, spec.stage) == ("a@example.com", "docs/r.md", Stage.LIVE)
    assert (spec.dedup_period, spec.page_within, spec.notify) == (timedelta(hours=1), timedelta(minutes=15), True)
    assert (spec.slide, spec.score, spec.memory) == (None, None, None)
    assert (spec.title, spec.doc) == ("Bursts.", "Bursts.\n\nMore.")


def test_several_sources_are_part_of_the_version_and_one_is_as_it_was(tmp_path: Path) -> None:
    one = read_spec(written(tmp_path, GOOD))
    both, turned, alone = (
        read_spec(written(tmp_path, GOOD.replace('source="logins"', f"source={names}")))
        for names in ('["logins", "resets"]', '["resets", "logins"]', '["logins"]')
    )
    assert (both.sources, bool(both.stream_only)) == (("logins", "resets"), True)
    assert (alone.version, alone.stream_only) == (one.version, "")
    assert len({one.version, both.version, turned.version}) == 3


def test_reads_options(tmp_path: Path) -> None:
    options = (
        'stage="shadow", slide="5 seconds", score="rising", dedup_period="1 day", page_within="1 hour", '
        'notify=False, dedup="app", false_positives="A scanner of ours."'
    )
    spec = read_spec(
        written(tmp_path, GOOD.replace('stage="live"', options).replace('"user_id"', '["user_id", "app"]', 1))
    )
    assert spec.entity == ("user_id", "app")
    assert (spec.slide, spec.score, spec.stage) == (timedelta(seconds=5), ScoreKind.RISING, Stage.SHADOW)
    assert (spec.dedup_period, spec.page_within, spec.notify) == (timedelta(days=1), timedelta(hours=1), False)
    assert (spec.dedup, spec.false_positives) == (("app",), "A scanner of ours.")
    assert spec.version == read_spec(written(tmp_path, spec.path.read_text().replace(', dedup="app"', ""))).version


def test_tags_and_references_are_for_people_and_change_no_version(tmp_path: Path) -> None:
    declared = 'stage="live", tags="T1110", references=["T1110.001", "https://wiki.example.com/a", "Handbook, p. 7"]'
    spec = read_spec(written(tmp_path, GOOD.replace('stage="live"', declared)))
    assert spec.version == read_spec(written(tmp_path, GOOD)).version
    guide = DetectorGuide.of(spec)
    assert guide.facts["tags"] == "T1110"
    assert [link_of(reference) for reference in guide.references] == [
        "https://attack.mitre.org/techniques/T1110/001/", "https://wiki.example.com/a", "",
    ]  # fmt: skip


def expecting(expect: str, old: str = "", new: str = "") -> str:
    text = GOOD.replace('stage="live"', f'stage="live", expect={expect}').replace("email=50, urgent=100", "email=0")
    return text.replace(old, new, 1) if old else text


def test_reads_whom_it_expects(tmp_path: Path) -> None:
    spec = read_spec(written(tmp_path, expecting('Entities(["a", "b"], minimum=5)')))
    assert spec.expect == Entities(["a", "b"], minimum=5)
    assert spec.expect.names == (("a",), ("b",))
    of_table = read_spec(written(tmp_path, expecting('Entities(table="users", minimum=5)')))
    assert of_table.expect == Entities(table="users", minimum=5)
    assert of_table.tables == ("users",)
    seen = read_spec(written(tmp_path, expecting('Entities(seen_within="7 days")')))
    assert seen.looks_back == timedelta(days=7)
    assert seen.memory_span == timedelta(days=7, seconds=10)
    assert repr(spec.expect) == "Entities(names=(('a',), ('b',)), minimum=5)", "its version is made of it"
    assert len({one.version for one in (spec, of_table, seen)}) == 3
    assert spec.version != read_spec(written(tmp_path, expecting('Entities(["a"], minimum=5)'))).version
    assert spec.version != read_spec(written(tmp_path, GOOD)).version
    pairs = expecting('Entities([["a", "eu"], ["a", "us"]])', '"user_id"', '["user_id", "region"]')
    assert read_spec(written(tmp_path, pairs)).expect == Entities([["a", "eu"], ["a", "us"]], 1)


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def live(declared: str) -> str:
    return changed('stage="live"', f'stage="live", {declared}')


NO_LINK = ":17: references: must be an address with https://"
DAY = ':16: time_zone: needs window="1 day", without slide='


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (changed('"logins"', "[]"), ":16: source: must not be empty"),
        (changed('"logins"', '["logins", "logins"]'), ":16: source: names 'logins' twice"),
        (changed('"logins"', "[3]"), ":16: source: must be a non-empty text"),
        (changed('"logins"', "None"), ":16: source: must be"),
        (live('tags=["two words"]'), ":17: tags: must be short words such as account-takeover or T1110"),
        (live('tags=["a", "a"]'), ":17: tags: names 'a' twice"),
        (live('references="javascript://x"'), NO_LINK),
        (live('references="one\\ntwo"'), NO_LINK),
        (live("references=7"), ":17: references: must be a non-empty text, not 7"),
        (live('dedup="ip"'), ":17: dedup: names 'ip', which is no column of the entity (user_id)"),
        (live('dedup=["user_id", "user_id"]'), ":17: dedup: names 'user_id' twice"),
        (live("dedup=None"), ":17: dedup: must be a non-empty text, not None"),
        (changed('"10 seconds"', '"1 day", time_zone="Berlin"'), ":16: time_zone: 'Berlin' is no time zone"),
        (changed('"10 seconds"', '"1 hour", time_zone="Europe/Berlin"'), DAY),
        (changed('"10 seconds"', '"1 day", slide="1 hour", time_zone="Europe/Berlin"'), DAY),
        (changed('"10 seconds"', 'None, time_zone="Europe/Berlin"'), DAY),
        (expecting("Entities([])"), ":17: expect: expects no entity, so nothing could ever be missing"),
        (expecting('Entities(["a"], table="users")'), ":17: expect: says in one way who is expected: Entities("),
        (expecting("Entities(minimum=2)"), ":17: expect: says in one way who is expected: Entities("),
        (expecting('Entities(seen_within="1 second")'), ":17: expect: seen_within must be at least as long"),
        (expecting('Entities(seen_within="soon")'), ":17: expect.seen_within: 'soon' is not a duration"),
        (
            expecting('Entities(seen_within="1 day")', "stage=", 'slide="5 seconds", stage='),
            ":17: expect: seen_within goes",
        ),
        (expecting('Entities(["a", "a"])'), ":17: expect: names an entity twice"),
        (expecting('Entities(["a"], minimum=0)'), ":17: expect: minimum=0 is always reached; it must be above 0"),
        (expecting('Entities(["a"], minimum="5")'), ":17: expect.minimum: must be a number, not '5'"),
        (expecting('Entities(["a"], minimum=1e999)'), ":17: expect.minimum: must be a number, not inf"),
        (expecting('Entities(["a", 5])'), ":17: expect.names: must be a non-empty text, not 5"),
        (expecting('Entities("a")'), ":17: expect.names: must be a valid list, not 'a'"),
        (
            expecting('Entities(["a"], minimum=5)', "email=0", "email=0, urgent=5"),
            ":17: expect: can miss 5 at most, so a limit of 5 is never exceeded",
        ),
        (expecting('Entities(["a"], 5, minimum=6)'), ":17: expect: must be written as Entities("),
        (live("false_positives=5"), ":17: false_positives: must be a non-empty text, not 5"),
        (live('latency="5 ms"'), ":17: latency: must be '10 ms', '100 ms' or '1 s', not '5 ms'; did you mean '10 ms'?"),
        (live('memory="10 MB"'), ":17: memory: must be greater than or equal to 512000000"),
        (live('stage="draft"'), ":17: is not Python 3.11: keyword argument repeated: stage"),
        (changed("email=50, urgent=100", "**{}"), ":16: levels: must be written as Levels(email=50"),
        (changed("email=50", "email=1e999"), ":16: levels.email: must be a number, not inf"),
        (changed('entity="user_id"', 'entity=["ip", "IP"]'), ":16: entity: names 'ip' twice"),
        (changed('entity="user_id"', 'entity="a.b"'), ":16: entity: 'a.b' is not a column name"),
        (changed('entity="user_id"', 'entity="window"'), ":16: entity: 'window' belongs to each finding"),
        (live('TAGS="a"'), ":17: TAGS: is not a key of a detector; did you mean 'tags'?"),
        (changed('"10 seconds"', '"0.0000001 seconds"'), ":16: window: '0.0000001 seconds' is too short"),
        (
            changed('"10 seconds"', '"99999999999 days"'),
            ":16: window: '99999999999 days' is too long: a duration is 36",
        ),
        (expecting('Entities(["a"], least=5)'), ":17: expect.least: is not a key of a detector"),
        (expecting('Entities([["a", "b"]])'), ":17: expect: needs 1 text for each entity, for each of its columns one"),
        (expecting('["a"]'), ':17: expect: must be written as Entities(["web.1", "web.2"], minimum=5)'),
        (expecting('Entities(["a"], 5, 6)'), ':17: expect: must be written as Entities(["web.1", "web.2"], minimum=5)'),
        (expecting("Entities(NAMES)"), ":17: expect: must be a literal, because the file is read"),
        (expecting('Entities(["a"])', 'window="10 seconds"', "window=None"), ":17: expect: needs a window"),
        (expecting('Entities(["a"])', "stage=", 'score="rising", stage='), ":17: expect: goes without score="),
    ],
)
def test_what_makes_no_sense_is_told_once(tmp_path: Path, text: str, told: str) -> None:
    (fault,) = faults_of(written(tmp_path, text))
    assert fault.startswith(told)


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        ("failed logins", "failed_logins"), ("Bursts", "bursts"), ("a-b.c", "a_b_c"), ("2fa", "n2fa"),
        ("café", "caf"), ("é", "detector"), ("a" * 70, "a" * 60), ("a=b:c", "a_b_c"), ("a\nb", "a_b"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_used_everywhere_is_refused_with_a_better_one(
    tmp_path: Path, name: str, valid: str
) -> None:
    fault = f"the file name is the detector's name: small letters, digits and _ only; rename it to {valid}.py"
    assert [one.rpartition(": the")[2] for one in faults_of(written(tmp_path, GOOD, name))] == [fault[3:]]
    assert read_spec(written(tmp_path, GOOD, valid)).name == valid


def test_resources_that_are_declared_go_before_those_of_the_settings(tmp_path: Path) -> None:
    plain = read_spec(written(tmp_path, GOOD))
    text = GOOD.replace('stage="live"', 'stage="live", resources={"executors": 4, "memory": "2 GB"}')
    spec = read_spec(written(tmp_path, text))
    assert spec.version == plain.version
    settings = ResourceSettings(executors=2, cores=3)
    assert settings.with_declared(plain.resources) == settings
    assert settings.with_declared(spec.resources) == ResourceSettings(executors=4, cores=3, memory=2_000_000_000)


@pytest.mark.parametrize(
    ("text", "size"),
    [("900 MB", 900_000_000), ("1.5 GB", 1_500_000_000), ("1GB", 1_000_000_000), ("512 MB", 512_000_000)],
)
def test_memory_is_read_as_bytes(tmp_path: Path, text: str, size: int) -> None:
    assert read_spec(written(tmp_path, GOOD.replace('stage="live"', f'stage="live", memory="{text}"'))).memory == size


def test_tells_all_faults_at_once_with_line_key_and_nearest_name(tmp_path: Path) -> None:
    text = GOOD.replace("source=", "sorce=").replace('window="10 seconds"', 'window="10 secs!"')
    text = (
        text.replace("urgent=100", "urgnt=100")
        .replace('stage="live"', 'stage="lve"')
        .replace('"a@example.com"', "owner()")
    )
    line = text[: text.index("@detector")].count("\n") + 1
    assert faults_of(written(tmp_path, text)) == [
        f":{line}: source: is missing",
        f":{line}: window: '10 secs!' is not a duration; write a number and a unit, such as '10 seconds' or '1 hour'",
        f":{line}: levels.urgnt: must be 'email' or 'urgent', not 'urgnt'; did you mean 'urgent'?",
        f":{line}: sorce: is not a key of a detector; did you mean 'source'?",
        f":{line + 1}: owner: must be a literal, because the file is read without being imported",
        f":{line + 1}: stage: must be 'draft', 'shadow', 'live' or 'retired', not 'lve'; did you mean 'live'?",
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("Levels(email=50, urgent=100)", "Levels()"), "levels: Levels needs a limit"),
        (("urgent=100", "urgent=10"), "levels: urgent=10 is below email=50"),
        (("email=50", "email=True"), "levels.email: must be a number, not True"),
        (("Levels(email=50, urgent=100)", "(50, 100)"), "levels: must be written as Levels(email=50, urgent=100)"),
        (('entity="user_id"', "entity=[]"), "entity: must not be empty"),
        (('owner="a@example.com"', 'owner="a@b@c"'), "owner: must be one e-mail address, not 'a@b@c'"),
        (('stage="live"', 'stage="live", slide="1 hour"'), "slide: needs a window at least as long as itself"),
        (('stage="live"', 'stage="live", notify="no"'), "notify: must be a valid boolean"),
        (('stage="live"', 'stage="live", resources={"executer": 2}'), "did you mean 'executors'"),
        (('stage="live"', 'stage="live", resources={"cores": 0}'), "resources.cores: must be greater than or equal"),
        (('stage="live"', 'stage="live", resources={"memory": 2}'), "resources.memory: must be a size such as"),
        (('stage="live"', 'stage="live", resources=3'), "resources: must be keys with values, not 3"),
        (('stage="live"', 'stage="live", memory="1 TB"'), "memory: must be a size such as '900 MB' or"),
        (('stage="live"', 'stage="live", memory="0 GB"'), "memory: must be a size such as '900 MB' or"),
        (('stage="live"', 'stage="live", memory=1000'), "or '1.5 GB', not 1000"),
        (('stage="live"', 'stage="live", memory=2 * GB'), "memory: must be a literal"),
        (('stage="live"', 'stage="live", **more'), "**: must be written out"),
        (("@detector(", '@detector("x", '), "detector: takes keywords only"),
        (("def detect(", "def find("), "must be called 'detect' or 'step', not 'find'"),
        (("@detector(", "@other("), "needs exactly one function with @detector(...) before it; found 0"),
        (('"""Bursts.\n\nMore.\n"""', ""), "needs a docstring"),
        (("def wanted(", "def wanted(("), "is not Python 3.11"),
    ],
)
def test_each_fault_is_told(tmp_path: Path, change: tuple[str, str], fault: str) -> None:
    assert change[0] in GOOD
    assert any(fault in told for told in faults_of(written(tmp_path, GOOD.replace(*change))))


def version(tmp_path: Path, text: str) -> str:
    return read_spec(written(tmp_path, text)).version


@pytest.mark.parametrize(
    "change",
    [
        ("email=50", "email=49"),
        ('window="10 seconds"', 'window="11 seconds"'),
        ('entity="user_id"', 'entity="ip"'),
        ('source="logins"', 'source="others"'),
        ('"login failed"', '"login refused"'),
        ('groupBy("window", "user_id")', 'groupBy("window", "ip")'),
        ("events.where(", "events.filter("),
        ('ACTION = "login failed"', 'ACTION = "login failed"\nif ACTION:\n    ACTION = "login refused"'),
        (
            'ACTION = "login failed"',
            'ACTION = "login failed"\ntry:\n    import geo\nexcept ImportError:\n    ACTION = "x"',
        ),
        ('ACTION = "login failed"', 'ACTION = "login failed"\nACTION += " twice"'),
        ('ACTION = "login failed"', 'ACTION = "login failed"\nglobals().update(ACTION="login refused")'),
        ('ACTION = "login failed"', 'ACTION = "login failed"\nCASES = [1]\nACTION = str(CASES)'),
    ],
)
def test_version_changes_with_whatever_may_change_results(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in GOOD
    assert version(tmp_path, GOOD) != version(tmp_path, GOOD.replace(*change))


@pytest.mark.parametrize(
    "change",
    [
        ("Bursts.", "Other words."),
        ("Count them.", "Count all of them."),
        ('owner="a@example.com"', 'owner="b@example.com"'),
        ('runbook="docs/r.md"', 'runbook="docs/s.md"'),
        ('stage="live"', 'stage="shadow"'),
        ('stage="live"', 'stage="live", memory="1 GB"'),
        ('ACTION = "login failed"', "# as the shop writes it\n\nACTION = 'login failed'  # or not"),
        ('ACTION = "login failed"', 'ACTION = "login failed"\nCASES = [{"at": 1, "finds": ()}]'),
        ("return wanted(events)", "return (wanted(\n        events))"),
    ],
)
def test_version_does_not_change_with_what_cannot(tmp_path: Path, change: tuple[str, str]) -> None:
    assert change[0] in GOOD
    assert version(tmp_path, GOOD) == version(tmp_path, GOOD.replace(*change))


FLOW = '''"""Words of lines."""
from tocsin import flow


@flow(source="lines", to="words", owner="a@example.com", stage="live")
def flow(events):
    return events
'''
VIEW = '''"""Counts of words."""
from tocsin import view


@view(source="words", key="word", window="10 seconds", keep="1 day", sink="redis", owner="a@example.com", stage="live")
def view(events):
    return events
'''


def test_a_flow_and_a_view_are_read_in_the_same_way(tmp_path: Path) -> None:
    flow = read_flow(written(tmp_path, FLOW, "words"))
    assert (flow.name, flow.sources, flow.to, flow.stage, flow.title) == (
        *("words", ("lines",), "words", Stage.LIVE, "Words of lines."),
    )
    view = read_view(written(tmp_path, VIEW, "word_counts"))
    assert (view.key, view.window, view.keep) == (("word",), timedelta(seconds=10), timedelta(days=1))
    assert (view.sink, view.table) == ("redis", "word_counts")
    assert read_view(written(tmp_path, VIEW.replace('keep="1 day"', 'table="counts"'), "word_counts")).table == "counts"


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            ('sink="redis"', 'sink="reds"'),
            "sink: must be 'sqlite', 'postgres', 'redis', 'influx' or 'topic', not 'reds'",
        ),
        (('key="word"', 'key="word", total="word"'), "total: must be some columns of the key (word), and not all"),
        (('key="word"', 'key=["word", "user"], total="word"'), "total: needs window=None"),
        (('sink="redis"', 'table="a; drop"'), "table: must match pattern"),
        (("def view(", "def views("), "must be called 'view', not 'views'"),
        (('key="word"', 'ky="word"'), "ky: is not a key of a view; did you mean 'key'?"),
        (('"""Counts of words."""', ""), "needs a docstring that says what its rows say"),
    ],
)
def test_each_fault_of_a_view_is_told(tmp_path: Path, change: tuple[str, str], fault: str) -> None:
    assert change[0] in VIEW
    with pytest.raises(ConfigError) as caught:
        read_view(written(tmp_path, VIEW.replace(*change), "word_counts"))
    assert any(fault in str(told) for told in caught.value.faults)


def test_the_version_of_a_view_changes_with_its_rows_alone(tmp_path: Path) -> None:
    def version_of_view(old: str, new: str) -> str:
        return read_view(written(tmp_path, VIEW.replace(old, new), "word_counts")).version

    assert version_of_view('key="word"', 'key="line"') != version_of_view('sink="redis"', 'sink="influx"')
    assert version_of_view('keep="1 day"', 'keep="2 days"') == version_of_view('sink="redis"', 'sink="influx"')


READS = {
    "    import time\n    x = time.time()": (8, "time.time reads the clock; use event_time"),
    "    from datetime import datetime as d\n    x = d.now()": (8, "d.now reads the clock; use event_time"),
    "    x = open('x').read()": (7, "open reads or writes files; declare the rows in tables/"),
    "    import pandas as pd\n    x = pd.read_hdf('x')": (8, "pd.read_hdf reads or writes files"),
    "    from pathlib import Path\n    x = Path('x').read_bytes()": (8, "Path reads or writes files"),
    "    from pickle import load\n    x = load(None)": (8, "load reads or writes files"),
    "    import joblib\n    x = joblib.load('x')": (8, "joblib.load reads a model from a file, of which no version"),
    "    import torch as t\n    x = t.load('x')": (8, "t.load reads a model from a file"),
    "    x = events.sparkSession.read.parquet('x')": (7, "events.sparkSession.read reads or writes files"),
    "    s = SparkSession.active()\n    x = SparkSession.active().table('x')": (8, "SparkSession.active().table reads"),
    "    import random as r\n    x = r.random()": (8, "r.random is left to chance"),
    "    import urllib.request\n    urllib.request.urlopen('x')": (8, "urllib.request.urlopen uses the network"),
    "    import os\n    x = os.environ['x']": (8, "os.environ differs from one machine to the next"),
    "    events = events.withColumn('at', F.current_timestamp())": (7, "F.current_timestamp reads the clock"),
    "    events = events.withColumn('at', F.unix_timestamp())": (7, "F.unix_timestamp reads the clock"),
    "    R().read()\n\n\nclass R:\n    def read(self):\n        return open('x')": (12, "open reads or writes files"),
    "    x = LIMIT\n\n\nLIMIT = float(open('x').read())": (10, "open reads or writes files"),
    "    u('a')\n\n\n@F.udf('int')\ndef u(x):\n    import uuid\n    return uuid.uuid4().int": (13, "uuid.uuid4 is"),
}  # fmt: skip


@pytest.mark.parametrize("code", READS)
def test_code_that_reads_more_than_events_is_refused_with_its_line(tmp_path: Path, code: str) -> None:
    line, what = READS[code]
    head = GOOD.replace("import nothing", "from pyspark.sql import functions as F\nimport nothing")
    before, _, after = head.partition('    """Count them."""\n')
    text = before + code + "\n" + ("" if "def " in code or "LIMIT" in code else after)
    first = before.count("\n")
    (fault,) = faults_of(written(tmp_path, text))
    assert fault.startswith(f":{first + line - 6}: detect: {what}"), fault


HARMLESS = '''
import time
from datetime import date, datetime, timedelta
from pathlib import Path, PurePath

from pyspark.sql import functions as F

SINCE = datetime(2026, 1, 1)
NAMES = {"open": "time.time()"}
AT = time.strptime("10:00", "%H:%M")


def unused():
    return time.time(), open("x"), Path("x")


def named(time: date, where: Path) -> Path:
    """Never calls datetime.now() or F.current_timestamp()."""
    return time.time()


def more(events):
    open = F.col("open")
    return events.where(open.isNotNull()).withColumn("at", F.unix_timestamp("event_time"))


if __name__ == "__main__":
    print(time.time())
'''


def test_what_reads_nothing_is_not_refused(tmp_path: Path) -> None:
    code = GOOD.replace("    return wanted", "    named(1, 2)\n    more(events)\n    return wanted")
    read_spec(written(tmp_path, code.replace("from tocsin import", f"{HARMLESS}\nfrom tocsin import")))


def test_days_of_a_time_zone_are_declared_and_change_the_version(tmp_path: Path) -> None:
    day = GOOD.replace('window="10 seconds"', 'window="1 day"')
    berlin = read_spec(written(tmp_path, day.replace('"1 day"', '"24 hours", time_zone="Europe/Berlin"')))
    assert (berlin.window, berlin.time_zone) == (timedelta(days=1), "Europe/Berlin")
    assert berlin.window_text == "1 day, 0:00:00, in Europe/Berlin"
    versions = {
        read_spec(written(tmp_path, text)).version
        for text in (day, day.replace('"1 day"', '"1 day", time_zone="+01:00"'))
    }
    assert len({*versions, berlin.version}) == 3
