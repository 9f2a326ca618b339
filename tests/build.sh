#!/bin/sh
# Configures and builds presets of CMakePresets.json, one after the other, with their tests.
# usage: tests/build.sh PRESET...     logs: build/PRESET.log; a line for each: the preset, and 0 when it was built, else 1;
# exits 1 when one was not
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
[ $# -gt 0 ] || {
    echo "usage: tests/build.sh PRESET..." >&2
    exit 2
}
mkdir -p "$root/build"
failed=0
for preset in "$@"; do
    # ThreadSanitizer is there for the threaded programs alone.
    target=all
    [ "$preset" != tsan ] || target=gk_threaded
    code=0
    {
        cmake --preset "$preset" -S "$root" -DGK_TESTS=ON && cmake --build "$root/build/$preset" --target "$target"
    } >"$root/build/$preset.log" 2>&1 || code=1
    [ "$code" = 0 ] || failed=1
    echo "$preset $code"
done
exit "$failed"
