#!/bin/sh
# The example config is valid, has every setting, and no setting that is not there.
#   check_config.sh GPUMEMD CONFIG
set -eu
gpumemd=$1 config=$2
"$gpumemd" --check-config --config="$config"
scratch=$(mktemp)
trap 'rm -f "$scratch"' EXIT
# Every commented setting, made active: the values that it shows must be valid too.
sed -E 's/^# ?(\[\[?[a-z]+\]\]?|[a-z_]+ = .*)$/\1/' "$config" >"$scratch"
"$gpumemd" --check-config --config="$scratch" >/dev/null
keys() { sed -nE 's/^(# ?)?([a-z_]+) = .*$/\2/p' "$1" | sort -u; }
"$gpumemd" --print-config >"$scratch.all"
missing=$(keys "$scratch.all" | while read -r key; do keys "$config" | grep -qx "$key" || echo "$key"; done)
rm -f "$scratch.all"
[ -z "$missing" ] || { echo "the example config lacks: $missing"; exit 1; }
echo "the example config is valid and whole"
