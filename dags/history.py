"""One DAG for each source, `history__<name>`: land each hour, seal ready days. See `tocsin.airflow.history`."""

from tocsin.airflow.history import history_dags

for dag in history_dags():
    globals()[dag.dag_id] = dag
