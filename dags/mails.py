"""The DAG `mails` sends messages that the notifier has not taken. See `tocsin.airflow.dags.mail_dag`."""

from tocsin.airflow.dags.mail_dag import mails_dag

dag = mails_dag()
