#!/bin/sh
# check_library.sh LIBRARY GOLDEN: the library exports exactly the golden list, needs nothing but what a worker may get,
# and has no symbol that is unique process-wide.
set -eu
library=$1
golden=$2
exported=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | LC_ALL=C sort)
if [ "$exported" != "$(cat "$golden")" ]; then
  echo "the exported symbols of $library are not those of $golden:"
  echo "$exported" | diff "$golden" - || true
  exit 1
fi
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in $needed; do
  case $name in
    libc.so.* | libm.so.* | libgcc_s.so.* | libstdc++.so.* | libnghttp2.so.* | ld-linux-*) ;;
    libasan.so.* | libubsan.so.* | libtsan.so.*) ;;
    *) echo "$library needs $name, which must not enter a worker"; exit 1 ;;
  esac
done
if ! readelf -d "$library" | grep -q 'SONAME.*\[libgpumem.so.0\]'; then
  echo "$library has another SONAME than libgpumem.so.0"
  exit 1
fi
if readelf -W --dyn-syms "$library" | grep -q UNIQUE; then
  echo "$library has GNU-unique symbols"
  exit 1
fi
