"""The DAG `batch` runs one detector over a range. See `tocsin.airflow.batch`."""

from tocsin.airflow.batch import batch_dag

dag = batch_dag()
