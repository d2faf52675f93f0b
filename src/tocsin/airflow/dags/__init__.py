"""Build the DAGs; the files in `dags/` only call these modules."""
