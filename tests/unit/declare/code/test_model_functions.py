"""Files of detectors with a model: what `check` refuses."""

from pathlib import Path

import pytest

from tests.rig.samples.models import SCORE, TEXT, TRAIN
from tocsin.declare.declaration import read_spec
from tocsin.declare.model.errors import ConfigError

MODEL = ", model=Model(days=3)"
SEEDED = "import numpy as np\ndef train(features):\n    return np.random.default_rng({seed}).random()\n"


@pytest.mark.parametrize(
    ("more", "functions", "window", "why"),
    [
        (MODEL, TRAIN, '"1 hour"', "needs a function score: def score(features, model)"),
        (MODEL, SCORE, '"1 hour"', "needs a function train: def train(features)"),
        (MODEL, TRAIN + "def score(features):\n    return 1\n", '"1 hour"', "must be def score(features, model)"),
        ("", TRAIN + SCORE, '"1 hour"', "score: is called by nothing, as one of a model: declare model=Model("),
        (MODEL, TRAIN + SCORE, "None", "needs a window"),
        (', score="final"' + MODEL, TRAIN + SCORE, '"1 hour"', "goes without score="),
        (', model=Model(every="5 hours")', TRAIN + SCORE, '"1 hour"', "whole days or weeks"),
        (MODEL, "import time\ndef train(features):\n    return time.time()\n" + SCORE, '"1 hour"', "reads the clock"),
        (
            MODEL,
            SEEDED.format(seed="") + SCORE,
            '"1 hour"',
            "np.random.default_rng is left to chance; make a generator with",
        ),
        (
            MODEL,
            TRAIN + SEEDED.format(seed=0).replace("train", "score").replace("features", "features, model"),
            '"1 hour"',
            "np.random.default_rng is left to chance; derive the value",
        ),
        (
            MODEL,
            SEEDED.format(seed=0).replace("train", "drawn")
            + "def train(features):\n    return drawn(features)\n"
            + "def score(features, model):\n    return drawn(features)\n",
            '"1 hour"',
            "np.random.default_rng is left to chance; derive the value",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(
    tmp_path: Path, more: str, functions: str, window: str, why: str
) -> None:
    (tmp_path / "made.py").write_text(TEXT.format(more=more, functions=functions, window=window))
    with pytest.raises(ConfigError) as caught:
        read_spec(tmp_path / "made.py")
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("more", "functions"),
    [
        ("", "def train(path):\n    return open(path)\n"),
        ("", TRAIN + SCORE + "def both():\n    return score(1, train(1))\n"),
        (MODEL, SEEDED.format(seed=0) + SCORE),
        (MODEL, SEEDED.format(seed="seed=SEED") + "SEED = 0\n" + SCORE),
        (MODEL, SEEDED.format(seed=0).replace("train", "drawn") + "def train(x):\n    return drawn(x)\n" + SCORE),
    ],
)
def test_functions_may_bear_these_names_without_a_model_and_make_random_numbers_by_a_seed_with_one(
    tmp_path: Path, more: str, functions: str
) -> None:
    (tmp_path / "made.py").write_text(TEXT.format(more=more, functions=functions, window='"1 hour"'))
    assert (read_spec(tmp_path / "made.py").model is not None) == bool(more)


def test_another_limit_of_time_needs_no_other_model(tmp_path: Path) -> None:
    versions = []
    for more in ("", ', timeout="2 hours", min_rows=5', ', every="1 week"'):
        text = TEXT.format(more=f", model=Model(days=3{more})", functions=TRAIN + SCORE, window='"1 hour"')
        (tmp_path / "made.py").write_text(text)
        spec = read_spec(tmp_path / "made.py")
        assert spec.tables == ("model.made",)
        versions.append(spec.version)
    assert versions[0] == versions[1] != versions[2]
