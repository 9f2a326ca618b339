#!/bin/sh
# clang-tidy over the sources (not the tests) with .clang-tidy: prints the findings, exits 1 when there are any.
# usage: tests/lint/tidy.sh [BUILD [FOLDER ...]]     BUILD: a configured build folder, build/release if not given
# Minutes of work, so tests/run.sh leaves it out: run it before a release, or on the folders you changed.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$root/build/release}
[ $# -eq 0 ] || shift
[ $# -gt 0 ] || set -- common proto cuda server worker tool
build=$(cd "$build" && pwd)
tidy=$(command -v clang-tidy-14 || command -v clang-tidy)
cmake -S "$root" -B "$build" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON >/dev/null
cd "$root"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
code=0
find "$@" -name '*.c' -print0 | xargs -0 -n 8 "$tidy" -p "$build" -quiet >"$output" 2>&1 || code=$?
if grep -E ' (warning|error): ' "$output" | sort -u | grep .; then
    exit 1
fi
# No finding, and yet it failed: it did not look at everything.
[ "$code" = 0 ] || { cat "$output" && exit "$code"; }
