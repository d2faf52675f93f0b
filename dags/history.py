"""Land and seal each source, `history__<name>`. See `tocsin.airflow.dags.history_dags`."""

from tocsin.airflow.dags.history_dags import history_dags

for dag in history_dags():
    globals()[dag.dag_id] = dag
