"""Prepare what the pages show; how they are served is in `tocsin.airflow.pages`."""
