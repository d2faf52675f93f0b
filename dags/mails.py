"""The DAG `mails` sends the mails of failed runs until they have left. See `tocsin.airflow.mails`."""

from tocsin.airflow.mails import mails_dag

dag = mails_dag()
