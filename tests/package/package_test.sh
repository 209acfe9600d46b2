#!/bin/sh
# Installs the build into a folder of its own, then builds and runs a program outside the tree that uses it:
# package_test.sh BUILD SOURCE CXX MODE FLAGS, where MODE is cmake or pkg-config.
set -eu
build=$1 source=$2 cxx=$3 mode=$4 flags=${5-}
for tool in cmake pkg-config; do
  command -v "$tool" >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
# pkg_check_modules and find_program must see the folder under test alone.
unset CMAKE_PREFIX_PATH PKG_CONFIG_PATH kvasir_DIR KVASIR_ROOT || true

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/installed" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
# A package that only works where it was first installed is none.
mv "$work/installed" "$work/prefix"
mkdir "$work/user"
cp "$source/tests/package/main.cc" "$work/user/"
"$work/prefix/bin/kvasir" --version

if [ "$mode" = cmake ]; then
  cat >"$work/user/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES CXX)
find_package(kvasir 0.1 REQUIRED)
add_executable(user main.cc)
target_link_libraries(user PRIVATE kvasir::kvasir)
END
  cmake -G Ninja -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_CXX_FLAGS="$flags"
  cmake --build "$work/user/build"
  program=$work/user/build/user
else
  pc=$(find "$work/prefix" -name kvasir.pc -printf '%h\n')
  export PKG_CONFIG_PATH="$pc"
  # shellcheck disable=SC2046,SC2086
  "$cxx" -std=c++20 -Wall -Wextra -Werror $flags "$work/user/main.cc" $(pkg-config --cflags --libs kvasir) \
    -o "$work/user/user"
  program=$work/user/user
fi
"$program" "$source/tests/data/kvasir-mini-3m-q8_0.gguf"
if grep -rlF -e "$source/src" -e "$source/include" -e "$build/" "$work/prefix/lib" --include='*.cmake' --include='*.pc'; then
  echo "the files above name folders of the build"
  exit 1
fi
