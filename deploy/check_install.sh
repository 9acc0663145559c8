#!/bin/sh
# The files that an installation has, and that a config file of the operator's survives the next one.
#   check_install.sh CMAKE BUILD SOURCE CONFIG-FILE
set -eu
cmake=$1 build=$2 source=$3 config=$4
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
# Only this room's files: the programs need not be built for it.
install() { DESTDIR=$tree "$cmake" -DCMAKE_INSTALL_COMPONENT=daemon -P "$build/deploy/cmake_install.cmake" >/dev/null; }
install
for file in lib/systemd/system/gpumemd.service lib/systemd/system/gpumemd-keeper.service lib/sysusers.d/gpumem.conf \
            lib/tmpfiles.d/gpumem.conf; do
  found=$(find "$tree" -path "*/$file" | wc -l)
  [ "$found" = 1 ] || { echo "$file is not installed"; exit 1; }
done
cmp "$tree$config" "$source/systemd/gpumemd.toml"
echo '# mine' >"$tree$config"
install
[ "$(cat "$tree$config")" = '# mine' ] || { echo "the config file was overwritten"; exit 1; }
echo "the installation is whole"
