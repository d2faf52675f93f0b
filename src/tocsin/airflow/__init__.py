"""DAGs that show the jobs and their switches, and that look after them; the only room that imports Airflow."""
