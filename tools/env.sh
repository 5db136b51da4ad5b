# Sourced by the scripts beside it: leaves the repository's folder in $root, and has use_environment, which makes and activates
# a locked environment. PYTHON names another Python 3.11 than the one on the PATH.

root=$(CDPATH="" cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PIP_DISABLE_PIP_VERSION_CHECK=1
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"

# use_environment FOLDER LOCK...
# The environment $root/FOLDER of the last of the locks in tools/, each of which holds all that the one before it holds. It is
# made where it is missing or out of date, and completed where it was made from the locks before the last.
use_environment() {
    make_environment "$@" || exit 1
    # shellcheck disable=SC1090
    . "$root/$1/bin/activate"
}

make_environment() {
    local name=$1 venv="$root/$1" started=$SECONDS line=$'\n' lock stamp wanted="" before=""
    shift
    for lock in "$@"; do
        before=$wanted
        # The folder belongs to the stamp: a copied environment would go on importing the package from where it was made.
        wanted+="$root $(cksum <"$root/tools/$lock")$line"
    done
    stamp="$(cat "$venv/stamp" 2>/dev/null)$line"
    if [ ! -x "$venv/bin/python" ]; then stamp=""; fi
    case "$stamp" in "$wanted"*) return 0 ;; esac

    if [ -n "$before" ] && [ "$stamp" = "$before" ]; then
        echo "completing $name from tools/$lock: a minute or two ..."
    else
        new_environment "$name" || return 1
        echo "making $name from tools/$lock: some minutes, about 3 GB ..."
    fi
    local log="$venv/install.log"
    if ! "$venv/bin/python" -m pip install --require-hashes --no-deps -r "$root/tools/$lock" >"$log" 2>&1 ||
        ! "$venv/bin/python" -m pip install --no-deps --no-build-isolation -e "$root" >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "The installation failed; the whole log is $name/install.log." >&2
        return 1
    fi
    printf '%s' "$wanted" >"$venv/stamp"
    echo "$name is ready after $((SECONDS - started)) s"
}

new_environment() { # an empty one, in place of what is there
    local python="${PYTHON:-python3.11}"
    if ! "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
        echo "Python 3.11 is needed, and '$python' is not it or is not there." >&2
        echo "Install it (for example: uv python install 3.11), or name one: PYTHON=/path/to/python3.11 $0" >&2
        return 1
    fi
    if ! "$python" -m venv --clear "$root/$1"; then
        echo "'$python -m venv' failed; on Debian and Ubuntu it needs the package python3.11-venv." >&2
        return 1
    fi
}
