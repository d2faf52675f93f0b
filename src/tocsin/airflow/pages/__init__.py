"""The pages that Tocsin adds to Airflow: the state of all jobs, and one job's history. They only read; its API acts."""
