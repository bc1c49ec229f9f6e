#!/usr/bin/env bash
# What the images' builder stages run: makes a virtual environment of one deployable. FOLDER/bin needs no pip to run.
#   deploy/install.sh dependencies producer|worker|sandbox FOLDER    the hash-pinned requirements alone
#   deploy/install.sh packages     producer|worker|sandbox FOLDER    wheels of our own packages, added to them
# Names no index: pip's own configuration says where packages come from.
set -euo pipefail
cd "$(dirname "$0")/.."
step=$1 deployable=$2 folder=$3
case $deployable in
producer | worker) packages=(schemas "$deployable") ;;
sandbox) packages=(schemas producer sandbox) ;;
*) echo "install.sh: $deployable is no deployable: producer, worker or sandbox" >&2 && exit 2 ;;
esac
case $step in
dependencies | packages) ;;
*) echo "install.sh: $step is no step: dependencies or packages" >&2 && exit 2 ;;
esac
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools"
tools_pip() { "$work/tools/bin/python" -m pip "$@"; }
into_folder() { tools_pip --python "$folder/bin/python" "$@"; }

case $step in
dependencies)
    python3 -m venv --without-pip "$folder"
    into_folder install --quiet --require-hashes --only-binary :all: -r "requirements/$deployable.txt"
    ;;
packages)
    tools_pip install --quiet --require-hashes --only-binary :all: -r requirements/build.txt
    tools_pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" "${packages[@]/#/./}"
    into_folder install --quiet --no-deps --no-index "$work"/wheels/*.whl
    into_folder check
    ;;
esac
