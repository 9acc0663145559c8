#!/usr/bin/env bash
# run_breaks.sh BIN_DIR BROKEN_LIBRARY_DIR: for each line "BREAK CHECK" of breaks.txt, the check must fail on a simulation
# that breaks that one rule, and the rule must have been asked. Without a break all of them must pass there.
set -euo pipefail
bin=$1
library=$2
here=$(dirname "$(readlink -f "$0")")
sign=$(mktemp -u "${TMPDIR:-/tmp}/conformance-break-XXXXXX")
trap 'rm -f "$sign" "$sign.log"' EXIT

checks=()
breaks=()
while read -r name check rest; do
  [[ -z $name || $name == \#* ]] && continue
  [[ -n $check && -z $rest ]] || { echo "breaks.txt: '$name $check $rest' is not 'BREAK CHECK'"; exit 1; }
  breaks+=("$name")
  checks+=("$check")
done <"$here/breaks.txt"

if ! "$here/on_simulation.sh" "$bin" "$library" "$bin/conformance" --strict "${checks[@]}" >"$sign.log"; then
  cat "$sign.log"
  echo "the checks fail without any break"
  exit 1
fi

wrong=0
for i in "${!breaks[@]}"; do
  rm -f "$sign"
  said=0
  SIMCUDA_BREAK=${breaks[$i]} SIMCUDA_BREAK_REACHED=$sign \
    "$here/on_simulation.sh" "$bin" "$library" "$bin/conformance" --strict "${checks[$i]}" >"$sign.log" 2>&1 || said=$?
  if [[ ! -e $sign ]]; then
    echo "${breaks[$i]}: ${checks[$i]} does not reach the rule"
  elif ((said != 1)) || ! grep -q '^0 ok, 1 failed,' "$sign.log"; then
    echo "${breaks[$i]}: ${checks[$i]} does not fail"
  else
    continue
  fi
  wrong=$((wrong + 1))
  sed 's/^/    /' "$sign.log"
done
echo "${#breaks[@]} breaks, $wrong not found by the check that is named for them"
((wrong == 0))
