"""From findings to people: the indexer stores findings and decides, the notifier sends.

::

    findings (topic) -----> indexer -> alerts DB (findings, alerts, outbox) -> notifier -> receivers
    ledgers of backfills --^                             notices about jobs, as files -----^

Pure are `finding_merging` (rules for findings), `alert_policy` (alerts and notifications), `alert_states` (from open to
resolved) and `notify.grouping` (when messages leave). `actions` is what people do to alerts, by command, page, link or
receiver. `recording` is the one transaction of the indexer, and `backfilled` that for a backfilled day.
`alert_lifecycle` ends and removes alerts. `store` has the tables and what everybody may read of them. `notify` has the
outbox, the messages and the channels. A channel is a module there and its record in `tocsin.declare.receivers`.
"""
