#!/bin/bash
# install_test: what must be true of an installed onebit.
#
#   install_test.sh CMAKE GENERATOR BUILD_FOLDER C_COMPILER CXX_COMPILER
#
# Installs into a temporary prefix, moves it elsewhere, and builds and runs a program with 2 ranks against it, by CMake's
# find_package(onebit) and by pkg-config. Nothing in the prefix may point into the build or source folders.
set -eu
cmake=$1 generator=$2 build=$3 cc=$4 cxx=$5
here=$(cd "$(dirname "$0")" && pwd)
source=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

two_ranks() { # PROGRAM: as a launcher would
  local port rank pids=()
  port=$(python3 -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])")
  for rank in 0 1; do
    env RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT="$port" timeout 60 "$1" >"$work/rank$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1; do
    wait "${pids[$rank]}" || { cat "$work"/rank?; fail "$1 with 2 ranks: rank $rank"; }
    grep -q "rank $rank of 2: sum 3" "$work/rank$rank" || { cat "$work"/rank?; fail "$1: the sum"; }
  done
}

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; fail "cmake --install"; }
mv "$work/first" "$work/prefix"
prefix=$work/prefix

echo "== what is installed: the library, two headers, CMake and pkg-config files, programs; no internal parts"
[ "$(cd "$prefix/include" && find . -type f | sort | tr '\n' ' ')" = "./onebit/onebit.h ./onebit/onebit.hpp ./onebit/optimizer.h ./onebit/optimizer.hpp " ] ||
  fail "other headers: $(find "$prefix/include" -type f)"
[ -z "$(find "$prefix" -name '*.a')" ] || fail "static libraries: $(find "$prefix" -name '*.a')"
library=$(find "$prefix" -name libonebit.so)
[ -L "$library" ] || fail "no libonebit.so that links to a versioned one"
libraries=$(dirname "$library")
soname=$(readelf -d "$library" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ -e "$libraries/$soname" ] || fail "no $soname"
[ "$soname" != libonebit.so ] || fail "the soname has no version"
[ -f "$libraries/libnccl-net-onebit.so" ] || fail "no libnccl-net-onebit.so"
[ ! -e "$libraries/libnccl-net.so" ] || fail "libnccl-net.so, which every job would load, was not asked for"
"$cmake" --install "$build" --prefix "$prefix" --component default-net-plugin >"$work/install.log"
[ "$(readlink "$libraries/libnccl-net.so")" = libnccl-net-onebit.so ] || fail "no libnccl-net.so when it is asked for"
if grep -rlE "$build|$source|onebit_(base|codec|bootstrap|transport|collective|optimizer)" "$libraries/cmake" "$libraries/pkgconfig"; then
  fail "these name the build's own folders or targets"
fi

echo "== find_package(onebit)"
"$cmake" -G "$generator" -S "$here/consumer" -B "$work/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CXX_COMPILER="$cxx" \
  >"$work/configure.log" 2>&1 || { cat "$work/configure.log"; fail "find_package"; }
"$cmake" --build "$work/consumer" >"$work/build.log" 2>&1 || { cat "$work/build.log"; fail "the build with find_package"; }
two_ranks "$work/consumer/consumer"

echo "== pkg-config onebit"
export PKG_CONFIG_PATH=$libraries/pkgconfig
[ "$(pkg-config --modversion onebit)" = "$(sed -n 's/^project(onebit VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")" ] ||
  fail "pkg-config's version"
# shellcheck disable=SC2046  # several flags
"$cc" -std=c99 "$here/consumer/consumer.c" -o "$work/consumer_c" $(pkg-config --cflags --libs onebit) -Wl,-rpath,"$libraries"
two_ranks "$work/consumer_c"

if [ -x "$prefix/bin/onebit_allreduce_perf" ]; then
  echo "== the installed program finds the installed library"
  ldd "$prefix/bin/onebit_allreduce_perf" | grep -q "libonebit.*$(basename "$work")" ||
    fail "$(ldd "$prefix/bin/onebit_allreduce_perf" | grep onebit)"
  "$prefix/bin/onebit_allreduce_perf" -R 2 -b 4K -e 4K -n 1 >"$work/perf.log" 2>&1 || { cat "$work/perf.log"; fail "onebit_allreduce_perf"; }
fi
echo "ok"
