# Sourced by the scripts beside it: makes the locked environment in .venv where it is missing or out of date, activates it,
# and leaves the repository's folder in $root. PYTHON names another Python 3.11 than the one on the PATH.

root=$(CDPATH="" cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PIP_DISABLE_PIP_VERSION_CHECK=1
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"

make_environment() {
    local python="${PYTHON:-python3.11}" venv="$root/.venv" started=$SECONDS wanted
    # The folder belongs to the stamp: a copied .venv would go on importing the package from where it was made.
    wanted="$root $(cksum <"$root/tools/requirements.lock")"
    if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/stamp" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        echo "Python 3.11 is needed, and '$python' is not it or is not there." >&2
        echo "Install it (for example: uv python install 3.11), or name one: PYTHON=/path/to/python3.11 $0" >&2
        return 1
    fi
    echo "making .venv from tools/requirements.lock: some minutes, about 3 GB ..."
    if ! "$python" -m venv --clear "$venv"; then
        echo "'$python -m venv' failed; on Debian and Ubuntu it needs the package python3.11-venv." >&2
        return 1
    fi
    local log="$venv/install.log"
    if ! "$venv/bin/python" -m pip install --require-hashes -r "$root/tools/requirements.lock" >"$log" 2>&1 ||
        ! "$venv/bin/python" -m pip install --no-deps --no-build-isolation -e "$root" >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "The installation failed; the whole log is .venv/install.log." >&2
        return 1
    fi
    printf '%s\n' "$wanted" >"$venv/stamp"
    echo "made .venv in $((SECONDS - started)) s"
}

make_environment || exit 1
# shellcheck disable=SC1091
. "$root/.venv/bin/activate"
