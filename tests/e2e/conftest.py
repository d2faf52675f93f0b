from tests.rig.broker import broker

__all__ = ["broker"]
