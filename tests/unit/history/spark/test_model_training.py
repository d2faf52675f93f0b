"""The process that trains a model: what takes too long or too much is ended and refused."""

import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.rig.samples.models import SCORE, TEXT, TRAIN
from tocsin.declare.declaration import read_spec
from tocsin.detect.model_program import RefusedModel
from tocsin.history.spark import model_training
from tocsin.history.spark.model_training import train_on
from tocsin.spark.tables.model_files import ModelFiles

FEATURES = pa.table({"window_start": pa.array([0], pa.timestamp("us", "UTC")), "user_id": ["ann"], "n": [1.0]})


@pytest.mark.parametrize(
    ("body", "timeout", "why"),
    [
        ("while True: pass", 2, "took longer than timeout = 2 seconds, and was ended"),
        ("return bytearray(10**10)", 120, "needs more than memory = 600 MB"),
        ("raise ValueError('no')", 120, r"made.py:8: train or score failed: ValueError: no"),
        ("import ctypes; ctypes.string_at(0)", 120, "ended with code .* and no result"),
    ],
)
def test_a_training_that_harms_is_ended_and_said(tmp_path: Path, body: str, timeout: int, why: str) -> None:
    functions = f"def train(features):\n    {body}\n{SCORE}"
    more = f', model=Model(min_rows=1, timeout="{timeout} seconds", memory="600 MB")'
    (tmp_path / "made.py").write_text(TEXT.format(more=more, functions=functions, window='"1 hour"'))
    with pytest.raises(RefusedModel, match=why):
        train_on(read_spec(tmp_path / "made.py"), FEATURES, ModelFiles(str(tmp_path / "models")))


def test_training_runs_by_the_python_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexec {sys.executable} -c "import sys; sys.exit(7)"\n')
    python.chmod(0o755)
    monkeypatch.setattr(model_training, "python_in", lambda _, name: python if name == "torch" else None)
    (tmp_path / "detectors").mkdir()
    (tmp_path / "detectors" / "made.py").write_text(
        TEXT.format(more=', model=Model(min_rows=1), environment="torch"', functions=TRAIN + SCORE, window='"1 hour"')
    )
    with pytest.raises(RefusedModel, match="ended with code 7"):
        train_on(read_spec(tmp_path / "detectors" / "made.py"), FEATURES, ModelFiles(str(tmp_path / "models")))
    assert (tmp_path / "asked").read_text().startswith("-m tocsin.detect.model_program ")
