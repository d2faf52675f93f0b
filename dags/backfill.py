"""One DAG for each detector, `backfill__<name>`, and view, `backfill__view.<name>`, over days of history.

See `tocsin.airflow.dags.backfill_dags` and `rebuild_dags`.
"""

from tocsin.airflow.dags.backfill_dags import backfill_dags
from tocsin.airflow.dags.rebuild_dags import rebuild_dags

for dag in [*backfill_dags(), *rebuild_dags()]:
    globals()[dag.dag_id] = dag
