"""`python -m bench.learned`: what an isolation forest costs, trained and asked by Tocsin, and by scikit-learn alone.

Scikit-learn is locked and installed in an environment of the bench's project, as people do it. Scores are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench.figures import table
from bench.past import Past, day_before
from bench.sealed import seal_past
from bench.spent import spent_by
from tocsin.declare.catalog import read_catalog
from tocsin.declare.settings import Settings
from tocsin.declare.source_file import read_source
from tocsin.history.places import Places
from tocsin.setup.paths import here
from tocsin.spark.tables.dated_versions import DatedVersions
from tocsin.spark.tables.model_files import ModelFiles
from tocsin.spark.tables.published_table import read_rows_of

_ENVIRONMENT = "bench-learned"
_DETECTOR = '''"""{what} of users in ten minutes."""
import numpy as np
import pandas as pd
from pyspark.sql import functions as F
{imports}
from tocsin import Levels, Model, detector

COLUMNS = ["logins", "failures", "addresses"]

@detector(source="logins", entity="user_id", window="10 minutes", levels=Levels(email=0.6), {model}
          environment="{environment}", owner="a@example.com", runbook="https://example.com", stage="draft")
def detect(events):
    failed = F.when(F.col("action") == "login failed", 1)
    return events.groupBy("window", "user_id").agg(
        F.count("*").alias("{first}"), F.count(failed).alias("failures"),
        F.size(F.collect_set("ip_address")).alias("addresses"))
{functions}
CASES = []
'''
_FUNCTIONS = """
def train(features):
    return IsolationForest(random_state=0).fit(np.log1p(features[COLUMNS]))

def score(features, model):
    return pd.Series(-model.score_samples(np.log1p(features[COLUMNS])))
"""
_ALONE = """
import json, pickle, sys, time
import numpy as np, pandas as pd, pyarrow.parquet as pq
files, scores, model = sys.argv[1].split(","), pd.read_parquet(sys.argv[2]), pickle.load(open(sys.argv[3], "rb"))
used = lambda: time.process_time()
began = used()
rows = pd.concat(pq.read_table(f, columns=["user_id", "event_time", "action", "ip_address"]).to_pandas() for f in files)
rows["window_start"] = rows.pop("event_time").dt.floor("10min")
rows["failed"] = rows.pop("action") == "login failed"
features = rows.groupby(["window_start", "user_id"]).agg(
    logins=("failed", "size"), failures=("failed", "sum"), addresses=("ip_address", "nunique")).reset_index()
computed = used()
features["alone"] = -model.score_samples(np.log1p(features[["logins", "failures", "addresses"]]))
scored = used()
both = scores.merge(features, on=["window_start", "user_id"])
print(json.dumps({"windows": len(features), "same": len(both) == len(features) == len(scores),
                  "apart": float((both["score"] - both["alone"]).abs().max()),
                  "features": computed - began, "scores": scored - computed}))
"""


def main() -> int:
    """Print the table; 1 when scores differ."""
    given = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    given.add_argument("--rows", type=int, default=1_000_000, help="of each day (default a million)")
    given.add_argument("--days", type=int, default=7, help="of which the model is made (default 7)")
    given.add_argument("--users", type=int, default=2_000)
    asked, folder = given.parse_args(), here().bench / "learned"
    shutil.rmtree(folder, ignore_errors=True)
    settings = Settings(project=folder, state=folder / "state")
    _declare(folder, asked.days)
    environment = os.environ | {"TOCSIN_PROJECT": str(folder), "TOCSIN_STATE": str(settings.state)}
    for words in (("lock",), ("install",)):
        subprocess.run([sys.executable, "-m", "tocsin.cli", "packages", *words], env=environment, check=True)
    past = Past(day_before(datetime.now(UTC), asked.days + 2), asked.days + 2, asked.rows, asked.users)
    source = read_source(folder / "sources" / "logins.toml")
    last = seal_past(settings, source, past)[-1]
    day, figures = str(past.dates[-1]), list[dict[str, object]]()

    def run(what: str, *words: str) -> None:
        spent = spent_by([sys.executable, "-m", "tocsin.cli", *words], folder / "log", environment, folder)
        if spent.code:
            raise SystemExit((folder / "log").read_text()[-3000:])
        figures.append({"what": what, "seconds": spent.seconds, "CPU-s": spent.cpu, "MB": spent.rss >> 20})

    for what in ("train the first three models", "train one more"):
        run(f"{what}, {asked.days} days of {asked.rows:,} rows each", "model", "train", "learned")
    for name in ("plain", "learned"):
        out = str(folder / f"{name}.parquet")
        run(f"scores of a day, {name}", "evaluate", name, "--from", day, "--to", day, "--scores", out)
    alone = _alone(
        settings,
        folder,
        [f"{Places.of(settings, 'logins').version(last.facts.day, last.version)}/{file.name}" for file in last.files],
    )
    figures += [
        {"what": f"{what} by pandas and scikit-learn alone", "CPU-s": alone[what]} for what in ("features", "scores")
    ]
    print(table(figures), f"\n{alone['windows']:,} windows, scores at most {alone['apart']} apart")
    return int(not alone["same"] or alone["apart"] > 1e-9)


def _declare(folder: Path, days: int) -> None:
    learned = {"what": "Features", "imports": "from sklearn.ensemble import IsolationForest", "functions": _FUNCTIONS,
               "model": f"model=Model(days={days}),", "first": "logins"}  # fmt: skip
    plain = {"what": "Numbers", "imports": "", "functions": "", "model": "", "first": "score"}
    files = {
        f"environments/{_ENVIRONMENT}.in": "scikit-learn\n",
        "sources/logins.toml": (here().root / "sources" / "logins.toml").read_text(),
    }
    files |= {
        f"detectors/{name}.py": _DETECTOR.format(environment=_ENVIRONMENT, **words)
        for name, words in (("learned", learned), ("plain", plain))
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def _alone(settings: Settings, folder: Path, files: list[str]) -> dict[str, float]:
    spec = read_catalog(folder).table("model.learned")
    of_day = DatedVersions(settings, spec).before(datetime.now(UTC).date())
    assert of_day is not None, "it was trained"
    (digest,) = read_rows_of(DatedVersions(settings, spec).place(of_day))["hash"].to_pylist()
    model = f"{ModelFiles.of(settings, 'learned').place}/{digest}.pickle"
    python = here().environment(_ENVIRONMENT) / "bin" / "python"
    command: list[str | Path] = [python, "-c", _ALONE, ",".join(files), str(folder / "learned.parquet"), model]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


if __name__ == "__main__":
    sys.exit(main())
