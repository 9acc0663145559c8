#!/usr/bin/env bash
# run_breaks.sh SIM_TEST BROKEN_LIBRARY_DIR: for each line "BREAK TEST" of breaks.txt, the test must fail on a simulation
# that breaks that one rule, and the rule must have been asked. Without a break all of them must pass there.
set -euo pipefail
test=$1
export SIMTEST_LIBRARY_DIR=$2
here=$(dirname "$(readlink -f "$0")")
sign=$(mktemp -u "${TMPDIR:-/tmp}/simulation-break-XXXXXX")
export SIMTEST_MACHINE_PREFIX=/dev/shm/simcuda-break-$$-

# What a test that was killed left: its machine, and the engines that write there.
sweep() {
  local engine
  for engine in $(pgrep -x simcuda-engine || true); do
    grep -qs "$SIMTEST_MACHINE_PREFIX" "/proc/$engine/maps" && kill -KILL "$engine"
  done
  rm -rf "$SIMTEST_MACHINE_PREFIX"*
}
trap 'sweep; rm -f "$sign" "$sign.log"' EXIT

mapfile -t lines < <(grep -vE '^(#|$)' "$here/breaks.txt")
filters=()
for line in "${lines[@]}"; do
  read -r _ test_name _ <<<"$line"
  filters+=("$test_name")
done
if ! "$test" --gtest_filter="$(IFS=:; echo "${filters[*]}")" >"$sign.log" 2>&1; then
  cat "$sign.log"
  echo "the tests fail without any break"
  exit 1
fi

wrong=0
for line in "${lines[@]}"; do
  read -r name test_name hangs <<<"$line"
  rm -f "$sign"
  said=0
  SIMCUDA_BREAK=$name SIMCUDA_BREAK_REACHED=$sign timeout -k 1 "${GPUMEM_BREAK_SECONDS:-3}" \
    "$test" --gtest_filter="$test_name" >"$sign.log" 2>&1 || said=$?
  sweep
  # A failed test exits with 1. Only where the list says so may it wait for what never comes.
  if [[ ! -e $sign ]]; then
    echo "$name: $test_name does not reach the rule"
  elif ((said != 1)) && ! [[ $hangs == hangs && $said == 124 ]]; then
    echo "$name: $test_name does not fail (exit status $said)"
  else
    continue
  fi
  wrong=$((wrong + 1))
  sed 's/^/    /' "$sign.log"
done
echo "${#lines[@]} breaks, $wrong not found by the test that is named for them"
((wrong == 0))
