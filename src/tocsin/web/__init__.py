"""The pages that people look at, in Airflow and by the job `web`; in `metrics` the figures for Prometheus."""
