"""Hosts whose commands are more varied than those of the other hosts of their team (somebody works there by hand).

Catches: an entropy of the commands of an hour far above the median of the team, which has five hosts or more.
Misses: what happens on most hosts of a team at once, and small teams.
When it fires, look first at: which commands only this host had.
"""

from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import Case, Levels, at, detector, email, urgent
from tocsin.stats import peer_scores
from tocsin.stats.spark import entropy


@detector(source="commands", entity=["team", "host"], window="1 hour", levels=Levels(email=3, urgent=5), score="final",
          owner="security@example.com", runbook="docs/runbooks/unlike_peers.md", stage="live")  # fmt: skip
def detect(events: DataFrame) -> DataFrame:
    varied = events.groupBy("window", "team", "host").agg(entropy(F.collect_list("command")).alias("bits"))
    columns = "window struct<start: timestamp, end: timestamp>, team string, host string, bits double, score double"
    return varied.groupBy("window", "team").applyInPandas(among_peers, columns)


def among_peers(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(score=peer_scores(rows["bits"], least=0.5))


OTHERS = at("12:00:00", team="web", host="web.1", command="ls").then(after="1 second", host="web.2")
TEAM = OTHERS.then(after="1 second", host="web.3").then(after="1 second", host="web.4")
ONE = at("12:10:00", team="web", host="web.5", command="ls")
TWO = ONE.then(after="1 second", command="cat")
THREE = TWO.then(after="1 second", command="id")
FIVE = THREE.then(after="1 second", command="nc").then(after="1 second", command="scp")
SIX = FIVE.then(after="1 second", command="sudo")
HOST: dict[str, Any] = {"team": "web", "host": "web.5"}
CASES = [
    # The others have an entropy of zero; of n commands that each come once it is log2(n), in units of half a bit.
    Case("mostly one of three", events=TEAM.then(ONE.repeat(3)).then(THREE), expect=[]),
    Case("one of three an hour later", events=TEAM.then(TWO).then(after="1 hour", command="id"), expect=[]),
    Case("three commands", events=TEAM.then(THREE), expect=[email(window="12:00:00", **HOST)]),
    Case("five commands", events=TEAM.then(FIVE), expect=[email(window="12:00:00", **HOST)]),
    Case("six commands", events=TEAM.then(SIX), expect=[urgent(window="12:00:00", **HOST)]),
    Case(
        "six commands, and three other hosts", events=OTHERS.then(after="1 second", host="web.3").then(SIX), expect=[]
    ),
]
