"""The command `tocsin`: one file per group of verbs.

`app` puts the verbs together and is the one place that turns errors into output; `output` is the one place that writes.
Importing this room is cheap: each verb imports what it needs when it runs.
"""
