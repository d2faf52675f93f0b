"""The DAG `mails` sends the mails of failed runs until they have left. See `tocsin.airflow.dags.mail_dag`."""

from tocsin.airflow.dags.mail_dag import mails_dag

dag = mails_dag()
