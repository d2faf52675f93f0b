#!/bin/sh
# Install podman and podman-compose, and a maker of a Debian for the stand-ins: Debian 12, as root.
set -eu
cd "$(dirname "$0")/../.."
if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
    echo "the tests in containers need Debian and root" >&2
    exit 2
fi
needed="podman runc netavark aardvark-dns conmon iptables catatonit mmdebstrap"
# shellcheck disable=SC2086
if ! dpkg --status $needed > /dev/null 2>&1; then
    apt-get update --quiet
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends $needed
fi
.tocsin/uv/bin/uv venv --quiet --allow-existing .tocsin/containers/venv
.tocsin/uv/bin/uv pip sync --quiet --python .tocsin/containers/venv --require-hashes locks/containers.txt
