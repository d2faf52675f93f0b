"""The DAG `housekeeping` removes what is old from Airflow. See `tocsin.airflow.dags.housekeeping`."""

from tocsin.airflow.dags.housekeeping import housekeeping_dag

dag = housekeeping_dag()
