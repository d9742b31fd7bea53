#!/usr/bin/env bash
# Unpacks Debian's Prometheus below the folder $1, once: no root, no service.
set -euo pipefail
folder=$1
[ -x "$folder/usr/bin/prometheus" ] && [ -x "$folder/usr/bin/promtool" ] && exit 0
command -v apt-get >/dev/null || { echo "no apt-get here: install Prometheus, and set DOVETAIL_PROMETHEUS" >&2; exit 1; }
mkdir -p "$folder"
cd "$folder"
# The second try has a list of packages of its own, which needs no root.
lists=(-o Dir::State="$PWD/state" -o Dir::Cache="$PWD/cache" -o Debug::NoLocking=1)
apt-get download -qq prometheus 2>/dev/null || {
    mkdir -p state/lists/partial cache/archives/partial
    apt-get "${lists[@]}" -qq update
    apt-get "${lists[@]}" -qq download prometheus
}
dpkg-deb -x prometheus_*.deb .
rm -rf prometheus_*.deb state cache
