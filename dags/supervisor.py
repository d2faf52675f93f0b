"""The DAG `supervisor` keeps all jobs running. See `tocsin.airflow.dags.supervisor_dag`."""

from tocsin.airflow.dags.supervisor_dag import supervisor_dag

dag = supervisor_dag()
