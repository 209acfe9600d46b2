#!/bin/bash
# Builds the Debian package, installs it below a folder, runs the program from there, removes it, and checks that
# nothing is left: deb_check.sh BUILD. With --system as second argument it is installed on this machine instead, by
# root, for machines that are thrown away.
set -euo pipefail
build=$1 system=${2-}
skip() { echo "skipped: $1"; exit 77; }
fail() { echo "failed: $1" >&2; exit 1; }
for tool in cpack dpkg dpkg-deb dpkg-shlibdeps file python3; do
  command -v $tool >/dev/null || skip "$tool is missing"
done
[ -e "$build/src/cli/shell/kvasir.bash" ] || skip "the target kvasir_shell is not built"

work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$work/cpack" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
package=$(echo "$work"/cpack/kvasir_*.deb)
[ -f "$package" ] || fail "there is no package"

echo "package: $(basename "$package"), $(stat -c %s "$package") bytes; depends on: $(dpkg-deb -f "$package" Depends)"
dpkg-deb -f "$package" Depends | grep -q libc6 || fail "its dependencies are not known"
for dependency in $(dpkg-deb -f "$package" Depends | tr ',' '\n' | sed 's/[ (|].*//; s/^ *//' | awk '{print $1}'); do
  dpkg-query -W -f '${db:Status-Status}\n' "$dependency" | grep -qx installed || fail "it depends on $dependency"
done
dpkg-deb -c "$package" | awk '{print $6}' | sort >"$work/content"
for path in ./usr/bin/kvasir ./etc/kvasir/kvasir.toml ./usr/lib/systemd/system/kvasir.service \
  ./usr/lib/sysusers.d/kvasir.conf \
  ./usr/share/man/man1/kvasir-serve.1 ./usr/share/bash-completion/completions/kvasir ./usr/share/doc/kvasir/copyright \
  ./usr/share/kvasir/models/kvasir-mini-16m-q8_0.gguf ./usr/share/kvasir/grafana/kvasir.json; do
  grep -qx "$path" "$work/content" || fail "it has no $path"
done
! grep -E '\.(h|a|cmake|pc)$' "$work/content" || fail "it has files for developers"
dpkg-deb -c "$package" | awk '$2 != "root/root" {print; bad = 1} END {exit bad}' || fail "its files have other owners"

root=$work/root
if [ "$system" = --system ]; then
  [ "$(id -u)" -eq 0 ] || fail "--system needs root"
  ! dpkg-query -W kvasir 2>/dev/null || fail "kvasir is installed already"
  root=
  command=(dpkg)
  "${command[@]}" -i "$package"
elif [ "$(id -u)" -eq 0 ]; then
  # A dpkg of its own: its scripts see DPKG_ROOT. Dependencies are those of this machine, checked above.
  mkdir -p "$root/var/lib/dpkg/updates" "$root/var/lib/dpkg/info"
  touch "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
  command=(dpkg --root="$root" --force-script-chrootless --force-depends --log=/dev/null)
  (cd "$root" && find . | sort) >"$work/before"
  "${command[@]}" -i "$package" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
else
  echo "not root: unpacked, not installed"
  dpkg -x "$package" "$root"
  command=()
fi

kvasir=$root/usr/bin/kvasir
"$kvasir" --version
"$kvasir" serve --config "$root/etc/kvasir/kvasir.toml" --print-config >/dev/null

# The unit runs as the user and group that the package makes.
unit=$root/usr/lib/systemd/system/kvasir.service
grep -qx 'User=kvasir' "$unit" && grep -qx 'Group=kvasir' "$unit" || fail "the unit names another user"
if command -v systemd-sysusers >/dev/null && [ "$(id -u)" -eq 0 ]; then
  mkdir -p "$work/users/etc"
  systemd-sysusers --root="$work/users" "$root/usr/lib/sysusers.d/kvasir.conf" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
  for file in passwd group; do grep -q '^kvasir:' "$work/users/etc/$file" || fail "there is no kvasir in $file"; done
fi

# Runs the server, asks it for five tokens, and ends it: serves KEY RUNNER..., in which RUNNER runs the program.
serves() {
  local key=$1 line port=
  shift
  rm -f "$work/said"
  mkfifo "$work/said"
  timeout 60 "$@" "$kvasir" serve --config "$root/etc/kvasir/kvasir.toml" --port 0 "${options[@]}" \
    --model "$root/usr/share/kvasir/models/kvasir-mini-16m-q8_0.gguf" 2>"$work/said" &
  server=$!
  exec 5<"$work/said"
  while IFS= read -r line <&5; do
    if [[ $line =~ http://127\.0\.0\.1:([0-9]+) ]]; then port=${BASH_REMATCH[1]}; break; fi
    echo "$line"
  done
  [ -n "$port" ] || fail "the server did not start"
  cat <&5 >/dev/null &
  python3 - "$port" "$key" <<'END' || fail "it does not answer"
import json, sys, urllib.request
request = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}/v1/completions",
                                 json.dumps({"prompt": "Once", "max_tokens": 5, "ignore_eos": True}).encode(),
                                 {"Authorization": "Bearer " + sys.argv[2]} if sys.argv[2] else {})
answer = json.load(urllib.request.urlopen(request, timeout=30))
assert answer["usage"]["completion_tokens"] == 5, answer
END
  kill -TERM "$(pgrep -P "$server")"  # timeout has another exit code
  wait "$server" || fail "the server ended with code $?"
  server=
}
options=()
serves "" env

# With API keys as docs/operations/deploying.md makes them: root's file, which the service's group may read.
if [ "$(id -u)" -eq 0 ] && command -v setpriv >/dev/null; then
  keys=$root/etc/kvasir/keys.toml service=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  chmod 711 "$work"
  "$kvasir" keys tenant research --api-keys "$keys" 2>/dev/null
  options=(--api-keys "$keys")
  ! "${service[@]}" timeout 60 "$kvasir" serve --config "$root/etc/kvasir/kvasir.toml" --port 0 "${options[@]}" \
    2>"$work/log" || fail "the service read keys that are root's"
  grep -q 'chgrp GROUP' "$work/log" || { cat "$work/log"; fail "it does not say how to mend unreadable keys"; }
  chgrp 65534 "$keys"
  chmod 640 "$keys"
  key=$("$kvasir" keys add --tenant research --api-keys "$keys" 2>/dev/null)
  [ "$(stat -c '%u %g %a' "$keys")" = "0 65534 640" ] || fail "an edit changed who may read the keys"
  serves "$key" "${service[@]}"
  echo "served with API keys, as another user than root"
fi

if [ ${#command[@]} -gt 0 ]; then
  "${command[@]}" --remove kvasir >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  [ -e "$root/etc/kvasir/kvasir.toml" ] || fail "removing it took the configuration away"
  "${command[@]}" --purge kvasir >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  for path in $(grep -v '/$' "$work/content") ./etc/kvasir ./usr/share/kvasir ./var/lib/kvasir; do
    [ ! -e "$root/$path" ] || fail "$path is left"
  done
  if [ -n "$root" ]; then
    # dpkg keeps its own files, and folders that every system has.
    (cd "$root" && find . -not -path './var/lib/dpkg*' -type f) | grep . && fail "files are left" || true
  fi
  echo "installed, served, removed and purged; nothing is left"
fi
