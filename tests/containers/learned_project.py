"""A project with packages, an environment and a model: our image is built with it, and must work with it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

NAME, HERE = "learned", "learned_here"
_DETECTOR = '''"""Users whose logins in ten seconds are like none of the days before."""

from lib.features import COLUMNS, features_of
from sklearn.preprocessing import StandardScaler

from tocsin import Case, Levels, Model, at, detector, email


@detector(
    source="logins",
    entity="user_id",
    window="10 seconds",
    levels=Levels(email=20),
    model=Model(days=7, min_rows=5),
    environment="learned",
    owner="security@example.com",
    runbook="docs/runbooks/failed_logins.md",
    stage="live",
)
def detect(events):
    return features_of(events)


def train(features):
    return StandardScaler().fit(features[COLUMNS])


def score(features, model):
    return abs(model.transform(features[COLUMNS])).max(axis=1)


PAIR = at("08:00:00", user_id="ann", action="login succeeded").then(after="1 second")
ORDINARY = PAIR.repeat(6, every="10 minutes").then(
    at("10:00:00", user_id="ann", action="login succeeded").repeat(6, every="10 minutes")
)
CASES = [
    Case(
        "a burst",
        train_on=ORDINARY,
        events=at("20:00:00", user_id="ann", action="login failed").repeat(30, every="0.2 seconds"),
        expect=[email(user_id="ann", window="20:00:00")],
    ),
    Case("as ever", train_on=ORDINARY, events=ORDINARY, expect=[]),
]
'''
_LIB = '''"""What models see of a user's logins."""

from pyspark.sql import functions as F

COLUMNS = ["logins", "failures"]


def features_of(events):
    failed = F.when(F.col("action") == "login failed", 1)
    return events.groupBy("window", "user_id").agg(F.count("*").alias("logins"), F.count(failed).alias("failures"))
'''
_FILES = {
    "requirements.in": "scikit-learn\n",
    f"environments/{NAME}.in": "scikit-learn\n",
    "lib/features.py": _LIB,
    f"detectors/{NAME}.py": _DETECTOR,
    f"detectors/{HERE}.py": _DETECTOR.replace(f'    environment="{NAME}",\n', "").replace("live", "draft"),
}


def declare(project: Path) -> None:
    """Put the files of the project into one that is there."""
    for name, text in _FILES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")


def withdraw(project: Path) -> None:
    for name in _FILES:
        (project / name).unlink()


def past() -> str:
    """Lines of logins of three days, some days ago, for `history import`."""
    today = datetime.now(UTC).date()
    return "".join(
        f"user_id: {user} | timestamp: {today - timedelta(days=back)}T{hour:02}:00:00Z | ip_address: 192.0.2.1"
        " | action: login succeeded\n"
        for back in (4, 3, 2)
        for hour in range(24)
        for user in ("ann", "bob", "bob")
    )
