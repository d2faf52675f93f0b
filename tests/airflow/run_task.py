"""A program for Airflow's environment: runs a program of `spark_jobs/` as its task does, by `spark_default`."""

import sys

from tocsin.airflow.tasks.program import Program

program, *arguments = sys.argv[1:]
Program(task_id="run", program=program, arguments=arguments).execute({})
