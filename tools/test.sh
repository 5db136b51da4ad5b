#!/usr/bin/env bash
# Lint, types, and the tests under Keras 3 and tf_keras, at the same time, with their coverage.
# Usage: tools/test.sh [--addons] [pytest arguments]        paths count from the repository's root
# --addons runs, in an environment of its own, the package's tests whose outcome can depend on the Keras in use, and nothing else:
# under Keras 2 on TensorFlow 2.15, the last one that TensorFlow Addons was made for.
# With arguments the coverage is shown and not held to its floor (pyproject.toml): they may restrict what runs.
set -uo pipefail

addons=false
if [ "${1:-}" = --addons ]; then
    addons=true
    shift
fi
. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
if $addons; then
    use_environment .venv-addons requirements-addons.lock
    pytest=(python -m pytest)
else
    use_environment .venv requirements.lock requirements-test.lock
    pytest=(python -m coverage run -m pytest)
fi
cd "$root" || exit 1

scratch=$(mktemp -d)
names=()
pids=()
cleanup() {
    if [ ${#pids[@]} -gt 0 ]; then
        kill "${pids[@]}" 2>/dev/null
        wait
    fi
    rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

summary=()
failures=0
record() { # step, exit status, remark
    local verdict=ok
    if [ "$2" -ne 0 ]; then
        verdict=FAILED
        failures=$((failures + 1))
    fi
    summary+=("$(printf '%-9s %-7s %s' "$1" "$verdict" "$3")")
}

start_tests() { # name, setting of TF_USE_LEGACY_KERAS as env takes it, pytest arguments
    local name=$1 setting=$2
    shift 2
    mkdir "$scratch/$name"
    # shellcheck disable=SC2086
    env $setting PYTHONUNBUFFERED=1 COVERAGE_FILE="$scratch/$name/.coverage" \
        "${pytest[@]}" -rs --durations=15 "$@" >"$scratch/$name.txt" 2>&1 &
    names+=("$name")
    pids+=($!)
}

running() {
    local pid
    for pid in "${pids[@]}"; do
        kill -0 "$pid" 2>/dev/null && return 0
    done
    return 1
}

progress() {
    local name line=""
    for name in "${names[@]}"; do
        line+=", $name $(wc -l <"$scratch/$name.txt" | tr -d ' ') lines"
    done
    echo "  $((SECONDS - started)) s: ${line#, }"
}

closing_line() {
    local line
    line=$(grep -E '(passed|failed|errors?|skipped|deselected|no tests ran).* in [0-9.]+s' "$scratch/$1.txt" | tail -n 1 | tr -d '=')
    echo "${line:-no closing line of pytest}" | sed -E 's/^ +| +$//g'
}

started=$SECONDS
if $addons; then
    echo "pytest under Keras 2, beside TensorFlow Addons"
    # Experiments and several processes are run on the main set, and TPUs are supported there. A folder that the arguments name
    # is not ignored.
    start_tests addons "-u TF_USE_LEGACY_KERAS" -m "not one_keras and not slow" \
        --ignore=tests/tools --ignore=tests/models --ignore=tests/configs --ignore=tests/tpu \
        --ignore=tests/workers "$@"
else
    echo "ruff check"
    python -m ruff check .
    record ruff $? ""

    echo "mypy tf_simigrad"
    python -m mypy tf_simigrad
    record mypy $? ""

    started=$SECONDS
    echo "pytest under Keras 3 and tf_keras, side by side"
    start_tests keras3 "-u TF_USE_LEGACY_KERAS" "$@"
    start_tests tf_keras "TF_USE_LEGACY_KERAS=1" -m "not one_keras and not slow" "$@"
fi
reported=$started
while running; do
    sleep 1
    if [ $((SECONDS - reported)) -ge 30 ]; then
        reported=$SECONDS
        progress
    fi
done
statuses=()
for pid in "${pids[@]}"; do
    wait "$pid"
    statuses+=($?)
done
pids=()

for i in "${!names[@]}"; do
    name=${names[$i]} status=${statuses[$i]}
    printf '\n---- pytest: %s\n' "$name"
    cat "$scratch/$name.txt"
    # 5: nothing was selected, which is no fault where the arguments choose tests that run under one Keras only.
    if [ "$status" -eq 5 ] && [ $# -gt 0 ] && [ "$name" != keras3 ]; then status=0; fi
    record "$name" "$status" "$(closing_line "$name")"
done

if ! $addons; then
    printf '\n---- coverage of both\n'
    python -m coverage combine --quiet "$scratch/keras3" "$scratch/tf_keras"
    if [ $# -gt 0 ]; then
        python -m coverage report --fail-under=0
        record coverage 0 "not judged: arguments were given"
    else
        python -m coverage report
        record coverage $? ""
    fi
fi

printf '\n'
printf '%s\n' "${summary[@]}" | sed 's/ *$//'
[ $failures -eq 0 ]
