"""Training in a process of its own: what goes wrong in `train` and `score` is said, and refused."""

import hashlib
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.detect.model_program import FEATURES, SOURCE, RefusedModel, TrainingTask, train
from tocsin.spark.tables import model_files
from tocsin.spark.tables.model_files import Findings, ModelFacts, ModelFiles, UnusableModel

GOOD_SCORE = "def score(features, model):\n    return features['n'] - model\n"
GOOD_TRAIN = "def train(features):\n    return float(features['n'].max())\n"


def features(days: int = 2, last: float = 3.0) -> pd.DataFrame:
    hours = pd.date_range("2026-01-01", periods=24 * days, freq="h", tz="UTC")
    values = [float(number % 3) for number in range(len(hours))]
    values[-24 * 7 :] = [last] * len(values[-24 * 7 :]) if days > 7 else values
    return pd.DataFrame({"window_start": hours, "user_id": "ann", "n": values})


def task(folder: Path, code: str, frame: pd.DataFrame, **changes: object) -> TrainingTask:
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), folder / FEATURES)
    (folder / SOURCE).write_text(code)
    return TrainingTask(
        path=str(folder / "d.py"), place=str(folder / "models"), entity=("user_id",), limit=0, min_rows=1, memory=10**9
    ).model_copy(update=changes)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def train(features):\n    pass\n" + GOOD_SCORE, "train returned nothing; return the model"),
        ("import threading\ndef train(features):\n    return threading.Lock()\n" + GOOD_SCORE, "cannot be pickled"),
        (GOOD_TRAIN + "def score(f, m):\n    return [1.0]\n", "returned 1 values for 48 rows"),
        (GOOD_TRAIN + "def score(f, m):\n    return 1.0\n", "returned float; return a number for each row"),
        (GOOD_TRAIN + "def score(f, m):\n    return ['1'] * len(f)\n", "values that are no numbers"),
        (GOOD_TRAIN + "def score(f, m):\n    return f['n'] / 0 * 0\n", "48 of 48 scores are NaN or infinite"),
        (GOOD_TRAIN + "def score(f, m):\n    return [None] * len(f)\n", "48 of 48 scores are NaN or infinite"),
    ],
)
def test_what_cannot_judge_is_refused(tmp_path: Path, code: str, why: str) -> None:
    with pytest.raises(RefusedModel, match=why):
        train(task(tmp_path, code, features()), tmp_path)


def test_the_gate_compares_with_the_days_and_the_model_before(tmp_path: Path) -> None:
    with pytest.raises(RefusedModel, match=r"48 rows of features, and min_rows = 100"):
        train(task(tmp_path, GOOD_TRAIN + GOOD_SCORE, features(), min_rows=100), tmp_path)
    drifted = task(tmp_path, GOOD_TRAIN + GOOD_SCORE, features(days=60, last=90.0), max_change=10.0)
    with pytest.raises(RefusedModel, match=r"drifted in the last 7 days: n \(median 90, usually"):
        train(drifted, tmp_path)
    accepted = train(drifted.model_copy(update={"max_change": None}), tmp_path)
    assert accepted.drifted, "said though it was accepted"
    ModelFiles(drifted.place).add((tmp_path / "model.pickle").read_bytes(), accepted.hash)
    changed = GOOD_TRAIN.replace("max()", "max() - 1") + GOOD_SCORE
    with pytest.raises(RefusedModel, match="finds 16 windows in the last 2 days, where the model before finds 0"):
        train(task(tmp_path, changed, features(), before=accepted.hash, max_change=10.0), tmp_path)
    found = train(task(tmp_path, changed, features(), before=accepted.hash, max_change=20.0), tmp_path).findings
    assert found is not None
    assert (found.new, found.old, len(found.appear), found.vanish) == (16, 0, 5, ())


def test_a_model_that_differs_when_it_is_trained_again_is_told(tmp_path: Path) -> None:
    counting = "import itertools\nN = itertools.count()\ndef train(features):\n    return float(next(N))\n" + GOOD_SCORE
    assert train(task(tmp_path, counting, features(), is_repeated=True), tmp_path).is_repeatable is False
    assert train(task(tmp_path, GOOD_TRAIN + GOOD_SCORE, features(), is_repeated=True), tmp_path).is_repeatable


@pytest.mark.parametrize(
    ("harm", "why"), [("remove", "is gone"), ("cut", "not the model"), ("replace", "not the model")]
)
def test_a_file_that_is_not_the_model_is_never_loaded(tmp_path: Path, harm: str, why: str) -> None:
    result = train(task(tmp_path, GOOD_TRAIN + GOOD_SCORE, features()), tmp_path)
    assert result.findings == Findings(days=2, new=0)
    content, files = (tmp_path / "model.pickle").read_bytes(), ModelFiles(str(tmp_path / "models"))
    files.add(content, result.hash)
    path = tmp_path / "models" / f"{result.hash}.pickle"
    if harm == "remove":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if harm == "cut" else b"cos\nsystem\n(S'touch harm'\ntR.")
    model_files._loaded.clear()  # that of a process which has loaded it stays
    with pytest.raises(UnusableModel, match=why):
        files.load(result.hash)
    files.add(content, result.hash)
    assert files.load(result.hash) == 2.0


def test_a_model_of_another_package_version_says_which_was_and_which_is_there(tmp_path: Path) -> None:
    content = b"cpandas\nNoSuchClass\n."
    digest = hashlib.sha256(content).hexdigest()
    day, packages = date(2026, 1, 1), {"numpy": version("numpy"), "pandas": "0.1", "no-such-package": "2"}
    facts = ModelFacts(
        hash=digest, day=day, first=day, last=day, days=1, rows=1, code="", version="v", packages=packages, seconds=1,
        memory=1, bytes=1, findings=Findings(days=1, new=0), trained_at=datetime.now(UTC),
    )  # fmt: skip
    files = ModelFiles(str(tmp_path))
    files.add(content, digest, facts)
    with pytest.raises(UnusableModel) as raised:
        files.load(digest)
    said = str(raised.value)
    assert said.startswith(f"{tmp_path}/{digest}.pickle: cannot be loaded here (AttributeError")
    assert (
        f"numpy {version('numpy')}, pandas 0.1 (here is {version('pandas')}), no-such-package 2 (here is none)" in said
    )
    assert said.endswith(f"or train again: tocsin model train {tmp_path.name}")
