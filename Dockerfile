# One image for the jobs and Airflow: the locked environments of `make setup` without test tools, with
# a Java and the archives of s3a. What changes most often comes last: a change of src alone installs nothing anew.
FROM python:3.11.14-slim-bookworm

RUN useradd --system --uid 10001 --create-home tocsin \
    && install --directory --owner=tocsin --group=tocsin /var/lib/tocsin /run/tocsin
WORKDIR /opt/tocsin
COPY pyproject.toml LICENSE ./
COPY locks locks
# Packages of the project, if it has any: beside a file that is there, a pattern may match nothing.
COPY LICENSE requirements.[it][nx]* ./
COPY LICENSE environment[s] environments/
COPY LICENSE wheel[s] wheels/
# All of src that set-up itself is made of.
COPY src/tocsin/declare/model/errors.py src/tocsin/declare/model/
COPY src/tocsin/setup src/tocsin/setup
# Set-up checks every package and archive against its hash. Modules are compiled now, since the user of the jobs may not
# write them. pyproject.toml names a README, which nobody reads here. What set-up keeps to resume from is of no use.
RUN touch README.md \
    && UV_COMPILE_BYTECODE=1 PYTHONPATH=src python3 -m tocsin.setup image \
    && ln -s "$(.venv/bin/python -c 'from tocsin.setup.java import find_java; print(find_java().home)')" java \
    && rm -rf .tocsin/ivy .tocsin/uv ~/.cache

COPY src src
# Making the archive of Spark's classes takes a minute and all of src, but it fits as long as the Java archives are the
# same: a cache keeps it.
RUN --mount=type=cache,target=/var/cache/tocsin \
    .venv/bin/python -m tocsin.setup classes --kept /var/cache/tocsin \
    && .venv/bin/python -m compileall -q src
COPY dags dags
COPY spark_jobs spark_jobs
COPY sources sources
COPY detectors detectors
COPY expectations expectations
# A project need not have these.
COPY LICENSE routes.tom[l] ./
COPY LICENSE flow[s] flows/
COPY LICENSE view[s] views/
COPY LICENSE table[s] tables/
COPY LICENSE li[b] lib/

ENV PATH=/opt/tocsin/.venv/bin:$PATH \
    JAVA_HOME=/opt/tocsin/java \
    SPARK_HOME=/opt/tocsin/.venv/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/tocsin/.venv/bin/python \
    MALLOC_ARENA_MAX=2 \
    PYTHONUNBUFFERED=1 \
    TOCSIN_PROJECT=/opt/tocsin \
    TOCSIN_STATE=/var/lib/tocsin

USER 10001
VOLUME /var/lib/tocsin
CMD ["tocsin", "--help"]
