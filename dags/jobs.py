"""One DAG for each detector, `detector__<name>`, and `platform` for the other jobs. See `tocsin.airflow.job_dags`."""

from tocsin.airflow.job_dags import job_dags

for dag in job_dags():
    globals()[dag.dag_id] = dag
