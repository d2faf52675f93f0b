"""One DAG for each detector, `backfill__<name>`: days of history. See `tocsin.airflow.dags.backfill_dags`."""

from tocsin.airflow.dags.backfill_dags import backfill_dags

for dag in backfill_dags():
    globals()[dag.dag_id] = dag
