#!/usr/bin/env bash
# on_simulation.sh BIN_DIR LIBRARY_DIR COMMAND...: runs a command on a fresh simulated machine of two devices, which is
# gone afterwards.
set -euo pipefail
bin=$1
library=$2
shift 2

parent=/dev/shm
[[ -d $parent && -w $parent ]] || parent=${TMPDIR:-/tmp}
dir=$(mktemp -d "$parent/conformance-XXXXXX")
trap 'rm -rf "$dir"' EXIT
unset CUDA_VISIBLE_DEVICES
"$bin/simgpu" init --dir "$dir/machine" --gpus 2 >/dev/null
SIMCUDA_DIR=$dir/machine LD_LIBRARY_PATH=$library "$@"
