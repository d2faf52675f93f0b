"""The DAG `housekeeping` removes what is old from Airflow. See `tocsin.airflow.housekeeping`."""

from tocsin.airflow.housekeeping import housekeeping_dag

dag = housekeeping_dag()
