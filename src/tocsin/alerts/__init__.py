"""From findings to people: the indexer stores findings and decides, the notifier sends.

::

    findings (topic) -----> indexer -> alerts DB (findings, alerts, outbox) -> notifier -> SMTP
    ledgers of backfills --^

`policy` and `merging` hold the rules (pure), `schema` and `migrations` the tables, `recording` the one transaction of
the indexer, `backfills` that for a backfilled day, `following` says which days those are, `outbox` has those of the
notifier, `store` what everybody else may read, `mail` how a notification looks.
"""
