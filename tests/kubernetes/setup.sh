#!/bin/sh
# Install etcd, and ask for Go, which builds the API server of tests/kubernetes: Debian 12, as root.
set -eu
if ! command -v go > /dev/null; then
    echo "the API server is built with Go 1.21 or newer, which fetches the version that it needs" >&2
    exit 2
fi
if ! command -v etcd > /dev/null; then
    if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
        echo "etcd is missing, and only on Debian, as root, is it installed here" >&2
        exit 2
    fi
    apt-get update --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends etcd-server
fi
