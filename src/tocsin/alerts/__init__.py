"""From findings to people: the indexer stores findings and decides, the notifier sends.

::

    findings (topic) -----> indexer -> alerts DB (findings, alerts, outbox) -> notifier -> channels (SMTP)
    ledgers of backfills --^                             notices about jobs, as files -----^

Two modules are pure: `finding_merging` has the rules for findings, `alert_policy` those for alerts and notifications.
`recording` is the one transaction of the indexer, and `backfilled` that for a backfilled day. `alert_lifecycle` ends
and removes alerts. `store` has the tables and what everybody may read of them. `notify` has the outbox, the messages
and the channels. A channel is a module there and its record in `tocsin.declare.receivers`.
"""
