# Shared by the scripts of this folder; sourced, not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build_packages=(g++ cmake ninja-build pkgconf libfmt-dev libcli11-dev nlohmann-json3-dev libutf8proc-dev
                libpcre2-dev libxxhash-dev libedit-dev libboost1.81-dev libsodium-dev libsqlite3-dev
                libtomlplusplus-dev libspdlog-dev prometheus-cpp-dev libzmq3-dev liburing-dev libhiredis-dev
                libcurl4-openssl-dev)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev python3 python3-numpy python3-jinja2 python3-yaml
               python3-zmq python3-msgpack slowhttptest chromium nginx libnginx-mod-http-js redis-server
               dpkg-dev file procps)
sanitizer_packages=(clang-14 libclang-rt-14-dev)
format_packages=(clang-format-14)

# say TEXT: on standard error, behind the minutes and seconds since the start.
say() {
  printf '%d:%02d %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1" >&2
}

# Installs those of the named Debian packages that are missing.
install_packages() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "missing packages: ${missing[*]}; install them as root" >&2; exit 1; }
    as_root=(sudo)
  fi
  say "installing: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >&2
}

# show_progress THINGS REGEX: where standard error is a terminal, shows how many of all things are done, as a percentage.
# The regular expression finds both numbers in a line of the output.
show_progress() {
  if [ ! -t 2 ]; then cat >/dev/null; return; fi
  local line
  while IFS= read -r line; do
    [[ $line =~ $2 ]] || continue
    printf '\r     %3d%% of %d %s' $((100 * BASH_REMATCH[1] / BASH_REMATCH[2])) "${BASH_REMATCH[2]}" "$1" >&2
  done
  printf '\r\033[K' >&2
}

# configure_and_build PRESET TARGET [CMake options...]: shows progress on a terminal; otherwise quiet unless something
# goes wrong.
configure_and_build() {
  local preset=$1 target=$2
  shift 2
  local log=build/$preset-build.log
  mkdir -p build
  say "building $target ($preset), minutes if it is the first time; the log is $log"
  if ! { cmake --preset "$preset" "$@" && cmake --build "build/$preset" --target "$target" -j "$(nproc)"; } 2>&1 |
    tee "$log" | show_progress steps '^\[([0-9]+)/([0-9]+)\]'; then
    tail -n 40 "$log" >&2
    exit 1
  fi
}

# run_tests PRESET [ctest options...]: shows the output of those that fail, and the names of those that were skipped.
run_tests() {
  local preset=$1 passed=true
  shift
  local log=build/$preset-tests.log
  say "running tests ($preset); the log is $log"
  ctest --preset "$preset" -j "$(nproc)" --no-tests=error "$@" 2>&1 | tee "$log" |
    show_progress tests '^ *([0-9]+)/([0-9]+) +Test' || passed=false
  awk '/^ *[0-9]+\/[0-9]+ Test +#/ { failed = /\*\*\*/ && !/Skipped/ } /^ *Start +[0-9]+:/ { failed = 0 } failed' "$log" |
    head -c 200000 >&2
  sed -n '/^[0-9]*% tests passed/,$p' "$log" >&2
  $passed || exit 1
}
