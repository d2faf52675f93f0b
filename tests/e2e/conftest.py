from tests.rig.broker import broker
from tests.rig.detect_job import job
from tests.rig.object_store import server

__all__ = ["broker", "job", "server"]
