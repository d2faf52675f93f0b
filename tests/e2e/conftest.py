from tests.rig.broker import broker
from tests.rig.detect_job import job

__all__ = ["broker", "job"]
