"""What Spark runs in: the JVM of the process, the archive of its classes, and the executors of a cluster."""
