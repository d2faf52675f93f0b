#!/bin/bash
# As the official image: KAFKA_NODE_ID is node.id in server.properties; new storage is formatted.
set -euo pipefail
cd /opt/kafka/config
env | grep ^KAFKA_ | grep -v -e ^KAFKA_HEAP_OPTS= | while IFS='=' read -r name value; do
    name=${name#KAFKA_}
    echo "$(tr 'A-Z_' 'a-z.' <<< "$name")=$value"
done > server.properties
cat > log4j2.properties <<'LOG'
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
LOG
kafka() { exec java ${KAFKA_HEAP_OPTS:-} -Dlog4j2.configurationFile=/opt/kafka/config/log4j2.properties -cp '/opt/kafka/libs/*' "$@"; }
(kafka kafka.tools.StorageTool format --ignore-formatted --cluster-id=5L6g3nShT-eMCtK--X86sw --config server.properties)
kafka kafka.Kafka server.properties
