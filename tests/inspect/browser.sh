#!/usr/bin/env bash
# What the tests in a browser need, below the folder $1, once (200 MB): playwright for Python $2, axe-core, TypeScript's
# checker. The browser is Debian's chromium (300 MB), which is installed where it is missing.
set -euo pipefail
folder=$1 python=$2
if ! command -v chromium >/dev/null; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "no chromium here: install it first" >&2; exit 1; }
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null
fi
command -v npm >/dev/null || { echo "no npm here: install Node.js 20 or later first" >&2; exit 1; }
[ -e "$folder/.done" ] && exit 0
mkdir -p "$folder"
"$python" -m pip --disable-pip-version-check -qq install --target "$folder/python" 'playwright==1.65.2'
npm install --silent --no-audit --no-fund --prefix "$folder" 'axe-core@4.14.1' 'typescript@7.0.2'
touch "$folder/.done"
