# One image for the jobs and Airflow: the locked environments of `make setup`, with a Java and without the mail sink.
FROM python:3.11.14-slim-bookworm AS setup

WORKDIR /opt/tocsin
COPY pyproject.toml README.md LICENSE ./
COPY locks locks
COPY src src
# Set-up checks every package and archive against its hash. What it keeps to resume from is of no use in an image.
RUN PYTHONPATH=src python3 -m tocsin.provision install \
    && ln -s "$(.venv/bin/python -c 'from tocsin.provision.java import find_java; print(find_java().home)')" java \
    && rm -rf .tocsin/ivy .tocsin/node .tocsin/uv

FROM python:3.11.14-slim-bookworm

RUN useradd --system --uid 10001 --create-home tocsin \
    && install --directory --owner=tocsin --group=tocsin /var/lib/tocsin /run/tocsin
WORKDIR /opt/tocsin
COPY --from=setup /opt/tocsin ./
COPY dags dags
COPY spark_jobs spark_jobs
COPY sources sources
COPY detectors detectors
COPY expectations expectations
# A project need not have these folders: beside a file that is there, a pattern may match nothing.
COPY LICENSE flow[s] flows/
COPY LICENSE view[s] views/
COPY LICENSE table[s] tables/

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
