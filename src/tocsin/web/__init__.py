"""Prepare what the pages show, served by `tocsin.airflow.pages`, and in `metrics` the figures for Prometheus."""
