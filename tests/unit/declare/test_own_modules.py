"""Modules of lib/: part of the version of what reaches them, checked as the file is, and found wherever it runs."""

import shutil
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from tests.rig.samples.project import source_file
from tocsin.declare.catalog import read_catalog
from tocsin.declare.code import outside_code
from tocsin.declare.code.own_modules import carrying, code_of
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.errors import ConfigError
from tocsin.platform.environments import READERS
from tocsin.spark.declared_function import DeclaredFunction, load_module

SOURCE = source_file()
DETECTOR = '''"""Bursts."""
from tocsin import Levels, detector
{imports}

@detector(source="logins", entity="user_id", window="10 seconds", levels=Levels(email=50),
          owner="a@example.com", runbook="docs/r.md", stage="live")
def detect(events):
    {body}
    return events


{cases}
'''
ENVIRONED = {
    "flows": '''"""Copies."""
from tocsin import flow


@flow(source="logins", to="copies", owner="a@example.com", stage="live")
def flow(events):
    return events
''',
    "views": '''"""Counts."""
from tocsin import view


@view(source="logins", key="user_id", window=None, owner="a@example.com", stage="live")
def view(events):
    return events.groupBy("user_id").count()
''',
}


def project(tmp_path: Path, imports: str, body: str = "pass", cases: str = "", **lib: str) -> Path:
    """Write a detector and modules of lib/, named with __ for /; returns the detector's file."""
    for name, text in lib.items():
        file = tmp_path / "lib" / f"{name if '/' in name else name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    path = tmp_path / "detectors" / "bursts.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(DETECTOR.format(imports=imports, body=body, cases=cases))
    (tmp_path / "sources").mkdir(exist_ok=True)
    (tmp_path / "sources" / "logins.toml").write_text(SOURCE)
    return path


REACHED = {
    "from lib.text import tidy": True,
    "import lib.text": True,
    "from lib import text": True,
    "from lib.more import other": True,  # which imports it
    "from lib.deep.near import one": True,  # which does by ..
    "from lib.text import CASES": True,
    "import json": False,
    "from lib import unlike": False,
    "from lib import text\nCASES = [text]": False,  # for a case alone
}


@pytest.mark.parametrize("imports", REACHED)
def test_a_version_changes_with_the_modules_that_are_reached_and_with_no_other(tmp_path: Path, imports: str) -> None:
    lib = {
        "text": "def tidy(x):\n    return x\n\n\nCASES = [tidy]\n",  # which are none of a detector
        "more": "from lib import text\n\n\ndef other(x):\n    return text.tidy(x)\n",
        "deep__near": "from ..text import tidy\n\n\ndef one(x):\n    return tidy(x)\n",
        "unlike": "LIMIT = 1\n",
    }
    before = read_catalog(project(tmp_path, imports, **lib).parents[1]).detector("bursts").version
    for text, changes in {
        '"""Said."""\n' + lib["text"] + "# more\n": False,
        lib["text"].replace("return x", "return -x"): True,
    }.items():
        (tmp_path / "lib/text.py").write_text(text)
        after = read_catalog(tmp_path).detector("bursts").version
        assert (after != before) == (changes and REACHED[imports])


LOCKED = {
    "import sklearn": {"requirements.txt": True, "environments/torch.txt": False},
    "from lib.learn import fit": {"requirements.txt": True, "environments/torch.txt": False},
    "import sklearn\nENVIRONMENT = 'torch'": {"requirements.txt": False, "environments/torch.txt": True},
    "import json": {"requirements.txt": False, "environments/torch.txt": False},
    "import pandas": {"requirements.txt": False, "environments/torch.txt": False},  # Tocsin's own
}


@pytest.mark.parametrize("imports", LOCKED)
def test_a_version_changes_with_the_packages_that_are_locked_where_it_runs(tmp_path: Path, imports: str) -> None:
    path = project(tmp_path, imports, learn="from sklearn.svm import SVC\n\n\ndef fit():\n    return SVC()\n")
    path.write_text(
        path.read_text().replace("stage=", ("environment='torch', " if "torch" in imports else "") + "stage=")
    )
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "torch.in").write_text("")
    for lock, changes in LOCKED[imports].items():
        versions = []
        for text in ("scikit-learn==1.8 \\\n    --hash=sha256:00\n", "scikit-learn==1.8\n", "scikit-learn==1.9\n"):
            (tmp_path / lock).write_text(text)
            versions.append(read_catalog(tmp_path).detector("bursts").version)
        assert versions[0] == versions[1], "another hash, or comment, is no other version"
        assert (versions[1] != versions[2]) == changes


@pytest.mark.parametrize(
    ("imports", "changes"),
    [
        ("from tocsin.stats import Ewma", True),
        ("from tocsin import stats", True),
        ("import tocsin.stats as s", True),
        ("from tocsin.stats import robust_z", True),  # which uses what changes
        ("from tocsin.stats import hour_of_week", False),
        ("from tocsin.stats.spark import robust_z", False),
        ("import math", False),
    ],
)
def test_a_version_changes_with_the_statistics_that_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports: str, changes: bool
) -> None:
    path, versions = project(tmp_path, imports), list[str]()
    for change in (("", ""), ("Return `value` within", "Give `value` within"), ("float(max(", "float(min(")):
        copy = tmp_path / f"copy{len(versions)}" / "src" / "tocsin"
        shutil.copytree(outside_code.__file__.partition("declare")[0] + "stats", copy / "stats")
        file = copy / "stats" / "functions.py"
        assert change[0] in file.read_text()
        file.write_text(file.read_text().replace(*change))
        monkeypatch.setattr(outside_code, "_TOCSIN", copy)
        outside_code._definitions.cache_clear()
        versions.append(read_spec(path).version)
    outside_code._definitions.cache_clear()
    assert versions[0] == versions[1], "a docstring counts for nothing"
    assert (versions[1] != versions[2]) == changes


REFUSED = {
    "from lib.texd import tidy": (
        3,
        "imports lib.texd, and there is no file {root}/lib/texd.py; did you mean 'lib.text'?",
    ),
    "import lib.deep.far": (3, "imports lib.deep.far, and there is no file {root}/lib/deep/far.py"),
    "from lib.twice import x": (3, "imports lib.twice, of which there are two: lib/twice.py and lib/twice/__init__.py"),
    "def late():\n    import lib.text": (4, "imports lib.text inside a function; import it at the top of the file"),
    "from detectors.other import x": (
        3,
        "imports detectors.other; what several files use belongs into a module of lib/",
    ),
    "import sys\nsys.path.insert(0, 'x')": (
        4,
        "detect: sys.path.insert imports what no version knows",
    ),
    "import importlib\nx = importlib.import_module('lib.text')": (
        4,
        "detect: importlib.import_module imports",
    ),
    "from lib.cut import x": ("lib/cut.py:2", "is not Python 3.11: invalid syntax"),
    "from lib.back import x": ("lib/back.py:1", "imports detectors.bursts; what several files use belongs into a mod"),
    "from lib.reader import limits": ("lib/reader.py:7", "open reads or writes files; declare the rows in tables/"),
    "from lib import reader": ("lib/reader.py:7", "open reads or writes files"),
    "from lib import at_import": ("lib/at_import.py:2", "joblib.load reads a model from a file, of which no version"),
}


@pytest.mark.parametrize("imports", REFUSED)
def test_what_is_wrong_with_an_import_or_in_a_module_is_said_with_its_line(tmp_path: Path, imports: str) -> None:
    path = project(
        tmp_path, imports, text="def tidy(x):\n    return x\n", twice="x = 1\n", **{"twice/__init__": "x = 1\n"},
        deep__near="", cut="x = 1\ny = = 2\n", back="from detectors.bursts import x\n",
        reader="def safe(x):\n    return x\n\n\ndef limits():\n    # of a file\n    return open('x')\n",
        at_import="import joblib\nMODEL = joblib.load('x')\n",
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        read_spec(path)
    place, what = REFUSED[imports]
    where = f"{path}:{place}" if isinstance(place, int) else f"{tmp_path}/{place}"
    assert str(caught.value).startswith(f"{where}: {what.format(root=tmp_path)}")


def test_what_no_file_uses_of_a_module_may_read_files(tmp_path: Path) -> None:
    read_spec(
        project(tmp_path, "from lib.reader import safe", reader="def limits():\n    return open('x')\nsafe = 1\n")
    )


def test_a_broken_module_breaks_what_reaches_it_alone(tmp_path: Path) -> None:
    path = project(tmp_path, "from lib import text", text="x = = 1\n")
    path.with_name("other.py").write_text(DETECTOR.format(imports="", body="pass", cases=""))
    catalog = read_catalog(tmp_path)
    assert ([*catalog.detectors], [*catalog.broken]) == (["other"], ["detectors/bursts"])
    (tmp_path / "lib/text.py").write_text("x = 1\n")
    assert [*read_catalog(tmp_path).detectors] == ["bursts", "other"]


@pytest.mark.parametrize("folder", READERS)
def test_an_environment_that_nothing_describes_is_a_fault(tmp_path: Path, folder: str) -> None:
    path = project(tmp_path, "").parents[1] / folder / "bursts.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(ENVIRONED.get(folder) or path.read_text())
    (tmp_path / "sources" / "copies.toml").write_text(
        SOURCE.replace("json", "events").replace('event_time = "at"\n', "")
    )
    path.write_text(path.read_text().replace('stage="live"', 'stage="live", environment="torch"'))
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "torch2.in").touch()
    (fault,) = read_catalog(tmp_path).broken[f"{folder}/{path.stem}"].faults
    assert (fault.key, fault.nearest) == ("environment", "torch2")
    (tmp_path / "environments" / "torch.in").touch()
    assert getattr(read_catalog(tmp_path), folder)[path.stem].environment == "torch"


def test_functions_of_modules_go_to_python_workers_by_value(tmp_path: Path) -> None:
    imports = "import json\n\nimport lib.deep.near\nfrom lib import json as own\nfrom lib.text import tidy"
    path = project(
        tmp_path, imports, "return tidy, lib.deep.near.one, own.LIMIT, json.dumps",
        text="def tidy(x):\n    return x + 1\n",
        deep__near="from ..text import tidy\n\n\ndef one(x):\n    return 10 * tidy(x)\n",
        json="from .größe import LIMIT", größe="LIMIT = 7\n",
    )  # fmt: skip
    function = load_module(path).detect
    assert not [name for name in sys.modules if name.partition(".")[0] == "lib"]
    for file in (tmp_path / "lib").rglob("*.py"):
        file.unlink()  # as on another machine
    tidy, one, limit, dumps = cloudpickle.loads(cloudpickle.dumps(function))(None)  # type: ignore[no-untyped-call]
    assert (tidy(1), one(1), limit, dumps([1])) == (2, 20, 7, "[1]")


def test_the_text_of_a_file_carries_its_modules(tmp_path: Path) -> None:
    path = project(tmp_path, "from lib.text import tidy", "tidy(events)", text="def tidy(x):\n    raise KeyError(x)\n")
    version, text = read_spec(path).version, code_of(path)
    (tmp_path / "lib/text.py").write_text("def tidy(x):\n    return x\n")
    kept = tmp_path / "versions" / "1" / "bursts.py"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(text)
    assert (read_spec(kept).version, code_of(kept)) == (version, text)
    assert carrying(path.read_bytes(), text).endswith(text.splitlines()[-1] + b"\n")
    assert read_spec(path).version != version
    for function in (DeclaredFunction(path, "detect", text), DeclaredFunction(kept, "detect")):
        with pytest.raises(ConfigError, match="fails: KeyError"):
            function(None)  # type: ignore[arg-type]


def test_a_text_whose_modules_are_damaged_is_a_fault_of_that_file(tmp_path: Path) -> None:
    path = project(tmp_path, "from lib.wörter import tidy", wörter="tidy = 7\n")
    kept = path.parents[1] / path.name
    kept.write_bytes(code_of(path).replace(b'"tidy', b'"\\qtidy'))
    with pytest.raises(ConfigError, match=r"'# carries lib/...' that is cut or changed"):
        read_spec(kept)


def test_a_kept_version_that_is_copied_back_runs_no_old_module(tmp_path: Path) -> None:
    path = project(tmp_path, "from lib.text import tidy", text="tidy = 7\n")
    before = path.read_text()
    path.write_bytes(code_of(path))
    (fault,) = read_catalog(tmp_path).broken["detectors/bursts"].faults
    assert "carries lib/text.py of an earlier version" in fault.what
    assert fault.line == path.read_text().splitlines().index('# carries lib/text.py: "tidy = 7\\n"') + 1
    path.write_text(before)
    assert [*read_catalog(tmp_path).detectors] == ["bursts"]


def test_a_module_that_fails_at_import_is_said_with_its_own_line(tmp_path: Path) -> None:
    path = project(tmp_path, "from lib import text", text="LIMITS = {}\nLIMIT = LIMITS['x']\n")
    with pytest.raises(ConfigError) as caught:
        load_module(path)
    assert str(caught.value) == f"{tmp_path}/lib/text.py:2: cannot be imported: KeyError: 'x'"


def test_a_module_for_cases_alone_is_there_for_them_and_harms_no_job(tmp_path: Path) -> None:
    path = project(tmp_path, "from lib import timelines", cases="CASES = [timelines.LOGIN]", timelines="LOGIN = 1\n")
    assert b"timelines.py" not in code_of(path)
    assert load_module(path, with_cases=True).CASES == [1]
    (tmp_path / "lib/timelines.py").write_text("x = = 1\n")
    read_spec(path), load_module(path)
