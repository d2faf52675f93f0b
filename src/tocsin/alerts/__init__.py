"""From findings to people: the indexer stores findings and decides, the notifier sends.

::

    findings (topic) -----> indexer -> alerts DB (findings, alerts, outbox) -> notifier -> channels (SMTP)
    ledgers of backfills --^                             notices about jobs, as files -----^

`alert_policy` and `merging` hold the rules (pure), `recording` the one transaction of the indexer, `backfilled` that
for a backfilled day, `store` the tables and what everybody may read of them, `notify` the outbox of the notifier, the
composing of messages, and the channels. A channel is a module there and its record in `project.receivers`.
"""
