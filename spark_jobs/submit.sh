#!/bin/sh
# Spark's own spark-submit, without what an Airflow task carries in its environment: a job must not find the metadata DB,
# Airflow's secrets, its Python path, or the address of the alerts DB. If there is an engine of batches, its fork server
# runs the program in place of spark-submit.
for name in $(env | sed -n 's/^\(_\{0,2\}AIRFLOW[A-Za-z0-9_]*\|PYTHONPATH\|PYTHONHOME\|TOCSIN_ALERTS[A-Za-z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done
root="$(dirname "$0")/.."
exec "$root/.venv/bin/python" -I -S "$root/src/tocsin/platform/fork_server.py" "$root/.venv/bin/spark-submit" "$@"
