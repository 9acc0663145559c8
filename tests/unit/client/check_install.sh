#!/bin/sh
# check_install.sh BUILD CONSUMER: installs the component "client" into an empty prefix, builds the consumer against it by
# CMake package and by pkg-config, and runs it.
set -eu
build=$1
consumer=$2
work=$(mktemp -d /tmp/gpumem-install-XXXXXX)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" --component client >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
if ! { cmake -S "$consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_BUILD_TYPE=Debug &&
  cmake --build "$work/build"; } >"$work/log" 2>&1; then
  cat "$work/log"
  exit 1
fi
"$work/build/consumer_c"
"$work/build/consumer_cc"
pc=$(dirname "$(find "$work/prefix" -name gpumem.pc)")
flags=$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs gpumem)
# shellcheck disable=SC2086
cc -std=c11 -o "$work/by_pkg_config" "$consumer/consumer.c" $flags
LD_LIBRARY_PATH=$(PKG_CONFIG_PATH=$pc pkg-config --variable=libdir gpumem) "$work/by_pkg_config"
