#!/usr/bin/env bash
# Builds the wheel, installs it where there is no torch, and uses there what must work there.
# usage: tests/wheel_check.sh PYTHON   (PYTHON has the module `build`)
set -euo pipefail
python=${1:?usage: tests/wheel_check.sh PYTHON}
here=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m build --wheel --outdir "$scratch" "$here" >"$scratch/build.log" 2>&1 || { cat "$scratch/build.log"; exit 1; }
"$python" -m venv "$scratch/bare"
"$scratch/bare/bin/pip" install --quiet --disable-pip-version-check -c "$here/constraints.txt" "$scratch"/*.whl
cd "$scratch"
launcher=$scratch/bare/bin/elastic-launcher
bare=$scratch/bare/bin/python

"$bare" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is not None)' || { echo "torch is in the bare environment"; exit 1; }
"$launcher" plan --global-batch-size 256 --max-batch-per-gpu 64 --world-size 3
"$launcher" plan --global-batch-size 256 --max-batch-per-gpu 64 --json >plan.json
"$bare" -m json.tool plan.json >/dev/null
printf '%s\n' '{"apiVersion": "elastic-hints/v1", "defaults": {"gpus": {"allowed": 2}}}' >good.json
printf '%s\n' '{"apiVersion": "elastic-hints/v1", "defaults": {"gpus": {"allowed": -2}}}' >bad.json
"$launcher" hints check good.json
if "$launcher" hints check bad.json; then echo "hints check let a bad document through"; exit 1; fi
"$bare" - <<'PYTHON'
import sys
import elastic_launcher
import elastic_launcher.cli.main
heavy = {"torch", "kfp", "hera", "kubernetes"} & set(sys.modules)
assert not heavy, f"import elastic_launcher and the command line load {heavy}"
PYTHON
"$bare" - <<'PYTHON'
import importlib.metadata, pathlib
files = {str(file) for file in importlib.metadata.files("elastic-launcher")}
for name in ("component.py", "metadata.yaml", "README.md", "__init__.py"):
    assert f"elastic_launcher/_components/training/elastic_train/{name}" in files, f"the wheel lacks {name}"
assert "elastic_launcher/py.typed" in files
PYTHON
# whoever has no kfp gets the newest client library: constraints.txt holds the tests at kfp's old one
"$bare" -m pip install --quiet --disable-pip-version-check "$(ls "$scratch"/*.whl)[kubernetes]" 'kubernetes==37.*'
cat >kubeconfig <<'YAML'
current-context: x
contexts: [{name: x, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: u, user: {token: secret}}]
YAML
KUBECONFIG=kubeconfig "$bare" - <<'PYTHON'
from elastic_launcher.kube.login import log_in
assert log_in().authorization() == "Bearer secret", "the newest kubernetes client keeps its token elsewhere"
PYTHON
"$bare" -m pip install --quiet --disable-pip-version-check -c "$here/constraints.txt" "$(ls "$scratch"/*.whl)[kfp]"
"$bare" - <<'PYTHON'
from kfp import compiler
from elastic_launcher.kfp import elastic_train
compiler.Compiler().compile(elastic_train, "component.yaml")
PYTHON
# the step of Containerfile that installs, on what it copies; torch and the like would take minutes
mkdir "$scratch/source"
(cd "$here" && cp -r pyproject.toml constraints.txt README.md LICENSE elastic_launcher components container "$scratch/source")
PATH=$scratch/bare/bin:$PATH "$scratch/source/container/install.sh" "$scratch/source" "$scratch/installed" "" ""
echo "wheel check: passed"
