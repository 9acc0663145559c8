#!/usr/bin/env bash
# run_breaks.sh SIM_TEST BROKEN_LIBRARY_DIR: for each line "BREAK TEST" of breaks.txt, the test must fail on a simulation
# that breaks that one rule, and the rule must have been asked. Without a break all of them must pass there.
set -euo pipefail
test=$1
export SIMTEST_LIBRARY_DIR=$2
here=$(dirname "$(readlink -f "$0")")
sign=$(mktemp -u "${TMPDIR:-/tmp}/simulation-break-XXXXXX")
trap 'rm -f "$sign" "$sign.log"' EXIT

mapfile -t lines < <(grep -vE '^(#|$)' "$here/breaks.txt")
filters=("${lines[@]#* }")
if ! "$test" --gtest_filter="$(IFS=:; echo "${filters[*]}")" >"$sign.log" 2>&1; then
  cat "$sign.log"
  echo "the tests fail without any break"
  exit 1
fi

wrong=0
for line in "${lines[@]}"; do
  name=${line%% *}
  rm -f "$sign"
  said=0
  # A broken rule may leave the test waiting for what never comes: that it does not pass is what is asked.
  SIMCUDA_BREAK=$name SIMCUDA_BREAK_REACHED=$sign timeout -k 1 "${GPUMEM_BREAK_SECONDS:-3}" \
    "$test" --gtest_filter="${line#* }" >"$sign.log" 2>&1 || said=$?
  if [[ ! -e $sign ]]; then
    echo "$name: ${line#* } does not reach the rule"
  elif ((said == 0)); then
    echo "$name: ${line#* } does not fail"
  else
    continue
  fi
  wrong=$((wrong + 1))
  sed 's/^/    /' "$sign.log"
done
pkill -KILL -x simcuda-engine || true
echo "${#lines[@]} breaks, $wrong not found by the test that is named for them"
((wrong == 0))
