#!/usr/bin/env bash
# Trains the smallest experiment on two virtual devices, exports it and checks the export without the plugin.
# Usage: tools/quickstart.sh [OUT]        OUT: the folder of the results, run/quickstart in the repository by default
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_environment .venv requirements.lock

out="${1:-$root/run/quickstart}"
case "$out" in
/*) ;;
*) out="$PWD/$out" ;;
esac

cd "$root"
python -m tools.train quickstart_digits --strategy mirrored --devices 2 --output "$out"
python -m tools.check_saved_model "$out"

echo "The results are in $out:"
ls "$out"
