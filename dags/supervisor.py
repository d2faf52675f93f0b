"""The DAG `supervisor` keeps all jobs running. See `tocsin.airflow.supervisor`."""

from tocsin.airflow.supervisor import supervisor_dag

dag = supervisor_dag()
