"""What all jobs with Spark share.

`session` makes a tuned session, `query` keeps one long-running query alive, `engine` is its JVM and cluster, `events`
reads events, `query_plan` reads the plan of a declared function, `tables` are what such a function joins.
"""
