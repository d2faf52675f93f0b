"""Run a detector on a stream: drains, scores and windows here, Spark in `tocsin.detect.spark`."""
