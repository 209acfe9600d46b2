#!/usr/bin/env bash
# Fetches marked.js from npm at the version below. Building Kvasir does not need this.
#   web/inspector/vendor/update.sh           writes marked.js and SHA256SUMS
#   web/inspector/vendor/update.sh --check   fails where the committed file is not what the package gives
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
version=18.2.1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
(cd "$folder" && npm pack --silent "marked@$version" >/dev/null && tar xzf "marked-$version.tgz")
package=$folder/package
# The licence stands in the file itself, since the binary carries that file alone. The map of sources is left out.
{
  printf '/*! marked %s, lib/marked.esm.js of the npm package\n\n' "$version"
  cat "$package/LICENSE"
  printf '*/\n'
  sed '/^\/\/# sourceMappingURL=/d' "$package/lib/marked.esm.js"
} >"$folder/marked.js"
if [ "${1:-}" = --check ]; then
  cmp "$folder/marked.js" marked.js
  sha256sum --check SHA256SUMS
else
  cp "$folder/marked.js" marked.js
  sha256sum marked.js >SHA256SUMS
fi
