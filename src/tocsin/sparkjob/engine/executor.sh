#!/bin/sh
# Run an executor of Spark in a pod: the image has this as `executor` on its PATH, the one word with which Spark starts the
# container of an executor. All else it says in variables; the options of the JVM are numbered.
set -eu
number=0
set --
while eval "[ -n \"\${SPARK_JAVA_OPT_$number+set}\" ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
    number=$((number + 1))
done
# It writes what the job sends, such as archives, into the folder where it runs.
mkdir -p "${SPARK_LOCAL_DIRS%%,*}"
cd "$(mktemp -d "${SPARK_LOCAL_DIRS%%,*}/executor.XXXXXX")"
exec "$JAVA_HOME/bin/java" "$@" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME"
