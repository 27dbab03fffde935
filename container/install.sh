#!/bin/sh
# Installs the launcher of a checkout into an environment of its own, on top of the Python that is there.
# usage: install.sh CHECKOUT FOLDER EXTRAS TORCH_INDEX [PACKAGE...]   (TORCH_INDEX may be empty; so may EXTRAS)
set -eu
checkout=$1 folder=$2 extras=$3 index=$4
shift 4
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

python3 -m venv --system-site-packages "$folder" # a base that has torch and its CUDA keeps them
python=$folder/bin/python
if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    constraints= # they name the torch that we test with, and would have it replaced
else
    constraints="--constraint $checkout/constraints.txt"
    case ,$extras, in
    *,torch,*)
        # shellcheck disable=SC2086 # two words or none
        if [ -n "$index" ]; then "$python" -m pip install --quiet $constraints --index-url "$index" torch; fi
        ;;
    esac
fi
# shellcheck disable=SC2086
"$python" -m pip install --quiet $constraints "$checkout${extras:+[$extras]}" "$@"
"$folder/bin/elastic-launcher" --version
