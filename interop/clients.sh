#!/usr/bin/env bash
# kcat and confluent-kafka against `tramline serve`: every codec, groups, commits, a SIGKILL of the broker between.
# Usage: interop/clients.sh PATH-OF-THE-TRAMLINE-BINARY
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${1:?usage: interop/clients.sh PATH-OF-THE-TRAMLINE-BINARY}
if ! command -v python3 >/dev/null 2>&1; then echo "skipped: no python3"; exit 0; fi
venv=target/interop-venv
if [ ! -x "$venv/bin/python" ]; then
  python3 -m venv "$venv" 2>/dev/null || { echo "skipped: no python3-venv"; exit 0; }
fi
if ! "$venv/bin/python" -c 'import confluent_kafka' 2>/dev/null; then
  "$venv/bin/pip" install --quiet --disable-pip-version-check 'confluent-kafka==2.*' || { echo "skipped: no confluent-kafka"; exit 0; }
fi
exec "$venv/bin/python" interop/clients.py "$binary"
