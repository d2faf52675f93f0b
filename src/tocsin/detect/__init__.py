"""Run a detector on a stream: scores and windows here, Spark in `tocsin.detect.spark`."""
