"""A DAG for each detector, `detector__<name>`, and `platform` for other jobs. See `tocsin.airflow.dags.job_dags`."""

from tocsin.airflow.dags.job_dags import job_dags

for dag in job_dags():
    globals()[dag.dag_id] = dag
