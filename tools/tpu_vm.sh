#!/usr/bin/env bash
# On a TPU VM: makes the environment, checks it, trains an experiment on the TPU, and checks the exported model.
# Usage: tools/tpu_vm.sh [--rehearse] CONFIG OUT [options of tools.train]
# CONFIG: as tools.train takes it. OUT: the folder of the results, on a disk that outlives the VM. The same command again goes
# on from the last finished epoch: after a preemption, run it on the new VM. --rehearse: the same on the CPU of any machine.
# tools/tpu_vm.md leads here from an empty project, and says what of this has been run.
set -euo pipefail

strategy=tpu
if [ "${1:-}" = --rehearse ]; then
    strategy=default
    shift
    # Without it libtpu looks for the metadata server of the cloud for minutes; the others keep it from warning.
    export TPU_SKIP_MDS_QUERY=1 TPU_WORKER_HOSTNAMES=localhost TPU_WORKER_ID=0 TPU_ACCELERATOR_TYPE=v5litepod-8
fi
if [ $# -lt 2 ]; then
    sed -n '2,6s/^# //p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
config=$1
case "$2" in
/*) out=$2 ;;
*) out="$PWD/$2" ;;
esac
shift 2

. "$(dirname "${BASH_SOURCE[0]}")/env.sh"
use_environment .venv-tpu requirements-tpu.lock
cd "$root"
export TF_USE_LEGACY_KERAS=1

python -m tools.doctor --strategy "$strategy"
python -m tools.train "$config" --strategy "$strategy" --output "$out" --resume "$@"
python -m tools.check_saved_model "$out"
