"""Jobs and history of an installation whose servers run elsewhere, without Airflow."""
