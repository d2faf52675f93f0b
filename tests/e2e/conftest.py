from tests.rig.detect_job import job
from tests.rig.object_store import server

__all__ = ["job", "server"]
