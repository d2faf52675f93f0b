#!/bin/bash
# As the official image: root reads the password, the user postgres does all the rest.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    POSTGRES_PASSWORD=$(cat "$POSTGRES_PASSWORD_FILE")
    export POSTGRES_PASSWORD
    chown -R postgres "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD") --auth-host=scram-sha-256 \
        --auth-local=trust --encoding=UTF8
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait --options="-c listen_addresses='' -c unix_socket_directories=/tmp" start
    psql --host=/tmp --username="$POSTGRES_USER" --dbname=postgres \
        --command="CREATE DATABASE \"$POSTGRES_DB\"" || [ "$POSTGRES_DB" = postgres ]
    pg_ctl --wait --mode=fast stop
fi
exec postgres -c listen_addresses='*' -c unix_socket_directories=/tmp
