"""One DAG for each detector, `backfill__<name>`: days of history, also as a Backfill. See `tocsin.airflow.backfill`."""

from tocsin.airflow.backfill import backfill_dags

for dag in backfill_dags():
    globals()[dag.dag_id] = dag
