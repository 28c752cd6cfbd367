#!/usr/bin/env bash
# Gradescope's autograder for the course, in one file that plays three parts.
#
#   bash tutorials/gradescope.sh pack autograder.zip [hidden.toml]   makes the zip to upload, in a checkout of normlab
#   setup.sh           what Gradescope runs once, to build the machine: it installs the packed wheel of normlab
#   run_autograder     what Gradescope runs for each submission: it writes results/results.json, whatever was handed in
#
# In the zip, setup.sh and run_autograder are this file. SEED draws the inputs: choose your own, the students' is 0.
set -euo pipefail
SEED=${SEED:-1}
ROOT=${AUTOGRADER:-/autograder} # where Gradescope has source/, submission/ and results/

pack() {
    local zip=${1:?the zip to write} hidden=${2:-} here parts
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    parts=$(mktemp -d)
    python3 -m pip wheel --quiet --no-deps --wheel-dir "$parts" "$here/.."
    cp "${BASH_SOURCE[0]}" "$parts/setup.sh"
    sed "s/^SEED=.*/SEED=$SEED/" "${BASH_SOURCE[0]}" >"$parts/run_autograder"
    [ -z "$hidden" ] || cp "$hidden" "$parts/hidden.toml"
    python3 -c 'import shutil, sys; shutil.make_archive(sys.argv[1].removesuffix(".zip"), "zip", sys.argv[2])' "$zip" "$parts"
    rm -r "$parts"
}

setup() {
    if ! command -v python3.11 python3.12 python3.13 >/dev/null; then
        apt-get update && apt-get install -y python3.11 python3.11-venv
    fi
    "$(command -v python3.13 python3.12 python3.11 | head -1)" -m venv "$ROOT/normlab"
    "$ROOT/normlab/bin/pip" install --quiet "$ROOT"/source/normlab-*.whl
}

# Students' files are data: the grader starts elsewhere, with an environment and a home folder of its own.
grade() {
    local away hidden=()
    away=$(mktemp -d)
    [ ! -f "$ROOT/source/hidden.toml" ] || hidden=(--hidden "$ROOT/source/hidden.toml")
    mkdir -p "$ROOT/results"
    cd "$away"
    if env -i PATH=/usr/bin:/bin HOME="$away" LANG=C.UTF-8 OMP_NUM_THREADS=1 \
        "$ROOT/normlab/bin/normlab" course grade "$ROOT/submission" --one --output "$away/scores" --seed "$SEED" \
        "${hidden[@]}" 2>"$away/errors"; then
        cp "$away/scores/results/submission.json" "$ROOT/results/results.json"
    else
        cat "$away/errors" >&2
        printf '{"score": 0, "output": "The grader stopped. Please tell your teacher."}\n' >"$ROOT/results/results.json"
    fi
}

case "$(basename "$0")" in
setup.sh) setup ;;
run_autograder) grade ;;
*) [ "${1:-}" = pack ] || { sed -n '2,8s/^# \?//p' "$0"; exit 2; }; shift; pack "$@" ;;
esac
