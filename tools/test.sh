#!/usr/bin/env bash
# Lint, types, and the tests under both Kerases, at the same time, with their coverage.
# Usage: tools/test.sh [pytest arguments]        paths count from the repository's root
# With arguments the coverage is shown and not held to its floor (pyproject.toml): they may restrict what runs.
set -uo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
cd "$root" || exit 1

scratch=$(mktemp -d)
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

run_tests() { # name, setting of TF_USE_LEGACY_KERAS as env takes it, pytest arguments
    local name=$1 setting=$2
    shift 2
    mkdir "$scratch/$name"
    # shellcheck disable=SC2086
    exec env $setting PYTHONUNBUFFERED=1 COVERAGE_FILE="$scratch/$name/.coverage" \
        python -m coverage run -m pytest "$@" >"$scratch/$name.txt" 2>&1
}

running() {
    local pid
    for pid in "${pids[@]}"; do
        kill -0 "$pid" 2>/dev/null && return 0
    done
    return 1
}

lines() { wc -l <"$scratch/$1.txt" 2>/dev/null | tr -d ' '; }

closing_line() {
    local line
    line=$(grep -E '(passed|failed|errors?|skipped|deselected|no tests ran).* in [0-9.]+s' "$scratch/$1.txt" | tail -n 1 | tr -d '=')
    echo "${line:-no closing line of pytest}" | sed -E 's/^ +| +$//g'
}

echo "ruff check"
python -m ruff check .
record ruff $? ""

echo "mypy tf_simigrad"
python -m mypy tf_simigrad
record mypy $? ""

echo "pytest under Keras 3 and tf_keras, side by side"
started=$SECONDS
run_tests keras3 "-u TF_USE_LEGACY_KERAS" "$@" &
pids+=($!)
run_tests tf_keras "TF_USE_LEGACY_KERAS=1" -m "not one_keras and not slow" "$@" &
pids+=($!)
reported=$started
while running; do
    sleep 1
    if [ $((SECONDS - reported)) -ge 30 ]; then
        reported=$SECONDS
        echo "  $((SECONDS - started)) s: keras3 $(lines keras3) lines, tf_keras $(lines tf_keras) lines"
    fi
done
wait "${pids[0]}"
keras3=$?
wait "${pids[1]}"
tf_keras=$?
pids=()
# 5: nothing was selected, which is no fault where the arguments choose tests that run under one Keras only.
if [ $tf_keras -eq 5 ] && [ $# -gt 0 ]; then tf_keras=0; fi

for name in keras3 tf_keras; do
    printf '\n---- pytest under %s\n' "$name"
    cat "$scratch/$name.txt"
done
record keras3 $keras3 "$(closing_line keras3)"
record tf_keras $tf_keras "$(closing_line tf_keras)"

printf '\n---- coverage of both\n'
python -m coverage combine --quiet "$scratch/keras3" "$scratch/tf_keras"
if [ $# -gt 0 ]; then
    python -m coverage report --fail-under=0
    record coverage 0 "not judged: arguments were given"
else
    python -m coverage report
    record coverage $? ""
fi

printf '\n'
printf '%s\n' "${summary[@]}" | sed 's/ *$//'
[ $failures -eq 0 ]
