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
# The same bytes in each build, and valid whatever times the files get: a builder may set them all to SOURCE_DATE_EPOCH,
# and bytecode that goes by its source's time would then be compiled anew at each start.
compile_all() { PYTHONHASHSEED=0 "$folder/bin/python" -m compileall -q --invalidation-mode unchecked-hash "$@"; }

case $step in
dependencies)
    python3 -m venv --without-pip "$folder"
    into_folder install --quiet --no-compile --require-hashes --only-binary :all: -r "requirements/$deployable.txt"
    compile_all "$folder/lib"
    ;;
packages)
    tools_pip install --quiet --require-hashes --only-binary :all: -r requirements/build.txt
    tools_pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheels" "${packages[@]/#/./}"
    # By name: of a wheel by its path, the path would be noted beside it, another one in each build.
    into_folder install --quiet --no-compile --no-deps --no-index --find-links "$work/wheels" "${packages[@]/#/forebay-}"
    compile_all "$folder"/lib/python3*/site-packages/forebay_*/
    into_folder check
    ;;
esac
