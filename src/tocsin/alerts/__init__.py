"""From findings to people: the indexer stores findings and decides, the notifier sends.

::

    findings (topic) -> indexer -> alerts DB (findings, alerts, outbox) -> notifier -> SMTP

`policy` holds the rules (pure), `schema` and `migrations` the tables, `recording` the one transaction of the indexer,
`outbox` those of the notifier, `store` what everybody else may read, `mail` how a notification looks.
"""
