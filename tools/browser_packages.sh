#!/bin/sh
# Run by `make browser`: installs what the playground's browser tests need, from the committed lock: npm packages, among
# them a Chromium, which is unpacked here where none is installed. Never fails the build: a machine without Node or
# network runs every other test.
set -u
cd "$(dirname "$0")/../web" || exit 1

skip() {
    echo "browser tests will be skipped: $1"
    exit 0
}

command -v node >/dev/null && command -v npm >/dev/null || skip "Node 20 with npm is not installed"
npm ci --no-audit --no-fund --prefer-offline --loglevel=error || skip "npm ci failed; is its registry in reach?"
node e2e/chromium.mjs >/dev/null || skip "no Chromium starts here"
# An install by an older npm, or one that changed nothing, may leave the stamp as old as it was.
touch node_modules/.package-lock.json
