#!/bin/sh
# The units, users and directories as systemd's own tools see them, in a root of their own. Exit code 77: no systemd.
#   check_units.sh DIRECTORY-WITH-THE-CONFIGURED-UNITS
set -eu
units=$1
here=$(dirname "$0")/systemd
command -v systemd-analyze >/dev/null 2>&1 || { echo "systemd-analyze is not here"; exit 77; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT

# verify wants the programs to exist and finds other units beside these.
printf '#!/bin/sh\n' >"$root/gpumemd"
chmod +x "$root/gpumemd"
for unit in gpumemd gpumemd-keeper; do
  sed "s|^ExecStart=[^ ]*/gpumemd|ExecStart=$root/gpumemd|" "$units/$unit.service" >"$root/$unit.service"
  grep -q "^ExecStart=$root/gpumemd" "$root/$unit.service" || { echo "$unit.service does not start gpumemd"; exit 1; }
  if grep -n '@' "$root/$unit.service" | grep -v 'SystemCallFilter=@'; then
    echo "$unit.service has a placeholder left"
    exit 1
  fi
done
# Unknown keys are warnings, which verify prints and forgives: any line is a failure here.
complaints=$(SYSTEMD_UNIT_PATH="$root:" systemd-analyze verify --man=no --recursive-errors=no \
  "$root/gpumemd.service" "$root/gpumemd-keeper.service" 2>&1) || { echo "$complaints"; exit 1; }
complaints=$(printf '%s\n' "$complaints" | grep "gpumemd" || true)
if [ -n "$complaints" ]; then
  echo "$complaints"
  exit 1
fi
# The score of an offline look, of 100: as good as the hardening that the driver tolerates allows.
for unit in gpumemd gpumemd-keeper; do
  systemd-analyze security --offline=true --no-pager --threshold=30 "$root/$unit.service" >"$root/score" 2>&1 || {
    cat "$root/score"
    exit 1
  }
  tail -n 1 "$root/score"
done

# Users and directories, when this user may make them in a root of its own.
if [ "$(id -u)" = 0 ] && command -v systemd-sysusers >/dev/null && command -v systemd-tmpfiles >/dev/null; then
  mkdir -p "$root/tree/etc" "$root/tree/run"
  systemd-sysusers --root="$root/tree" - <"$here/sysusers.conf"
  grep -q '^gpumemd:' "$root/tree/etc/passwd"
  for line in '^gpumem:.*:gpumemd$' '^gpumem-admin:.*:gpumemd$' '^gpumemd:'; do
    grep -q "$line" "$root/tree/etc/group" || { echo "no group $line"; exit 1; }
  done
  systemd-tmpfiles --root="$root/tree" --create - <"$here/tmpfiles.conf"
  for want in '750 gpumemd' '750 gpumemd-admin' '700 gpumemd-keeper'; do
    [ "$(stat -c %a "$root/tree/run/${want#* }")" = "${want% *}" ] || { echo "mode of ${want#* } is wrong"; exit 1; }
  done
fi
echo "units, users and directories are good"
