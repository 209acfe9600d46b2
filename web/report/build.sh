#!/usr/bin/env bash
# Rebuilds vendor/plotly.min.js from the locked npm packages (needs node 18 and npm). Building Kvasir needs neither.
#   web/report/build.sh           rebuilds, and says whether anything changed
#   web/report/build.sh --check   fails where the committed file is not what the packages give
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
node build.mjs
if [ "${1:-}" = --check ]; then
  sha256sum --check vendor/SHA256SUMS
else
  (cd vendor && sha256sum plotly.min.js LICENSES.txt) | sed 's|  |  vendor/|' >vendor/SHA256SUMS.new
  cmp -s vendor/SHA256SUMS.new vendor/SHA256SUMS && echo "nothing changed" || echo "changed: commit vendor/, and mend vendor/README.md"
  mv vendor/SHA256SUMS.new vendor/SHA256SUMS
fi
