#!/bin/sh
# Installs what is missing, builds with gcc, clang and sanitizers, runs all tests.  Last line: N passed, N failed.
# usage: tests/run.sh [quick]      quick: the gcc release build alone
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
. "$root/deploy/setup.sh"

case "${1:-}" in
-h | --help)
    printf 'usage: tests/run.sh [quick]\n\n'
    printf 'Installs the missing Debian packages, then lints, builds and tests three builds in build/: release (gcc), clang and\n'
    printf 'asan (address and undefined-behaviour sanitizers), and the threaded programs under tsan.  quick: release alone.\n'
    exit 0
    ;;
quick) others="" ;;
"") others="clang asan tsan" ;;
*) fail "unknown argument '$1': expected nothing or quick" ;;
esac

# shellcheck disable=SC2086
install_packages $GK_BUILD_PACKAGES $GK_TEST_PACKAGES
passed=0
failed=0
failures=""
started=$(date +%s)

# One check outside the builds: its words are shown only when it fails.
check() {
    name=$1
    shift
    if output=$("$@" 2>&1); then
        say "$name: ok"
        passed=$((passed + 1))
    else
        printf '%s\n' "$output"
        say "$name: FAILED"
        failed=$((failed + 1))
        failures="$failures
  $name"
    fi
}

# test_build PRESET CODE: the tests of a preset, unless building it has ended with another code than 0.
test_build() {
    preset=$1
    log="$root/build/$preset.log"
    # What a preset has to add (tests/CMakeLists.txt has the labels).
    selection=""
    case "$preset" in
    clang) selection="-LE once|memory -E ^(integration|lib|net|simt|store)_|^unit_(daemon|net|store|tool)_" ;;
    asan) selection="-LE once" ;;
    tsan) selection="-R ^(net_|lib_(ends|train)$|store_threads$)" ;;
    esac
    if [ "$2" != 0 ]; then
        tail -n 40 "$log"
        say "$preset: the build FAILED (all of it: $log)"
        failed=$((failed + 1))
        failures="$failures
  $preset: the build"
        return
    fi
    say "$preset: testing"
    junit="$root/build/$preset-tests.xml"
    rm -f "$junit"
    code=0
    # shellcheck disable=SC2086
    (cd "$root" && ctest --preset "$preset" -j6 $selection --output-junit "$junit" 3<&-) || code=$?
    counts=$(python3 "$root/tests/count.py" "$junit" "$root/build/$preset-failures.txt") || counts="0 1"
    passed=$((passed + ${counts% *}))
    failed=$((failed + ${counts#* }))
    if [ "$code" != 0 ] && [ "${counts#* }" = 0 ]; then
        failed=$((failed + 1))
        failures="$failures
  $preset: ctest ended with $code although no test failed"
    fi
    while read -r name; do
        failures="$failures
  $preset: $name"
    done <"$root/build/$preset-failures.txt"
}

check "layers, sizes and habits" python3 "$root/tests/lint/lint.py" "$root"
check "the lint can fail" python3 "$root/tests/lint/selftest.py"
check "format" "$root/tests/lint/format.sh"
say "release: building"
result=$("$root/tests/build.sh" release) || true # it says so
if [ -n "$others" ]; then
    # The others are built while tests run, which wait more than they compute.
    rm -f "$root/build/built"
    mkfifo "$root/build/built"
    # shellcheck disable=SC2086
    setsid nice -n 19 "$root/tests/build.sh" $others >"$root/build/built" &
    builder=$!
    trap 'kill -- "-$builder" 2>/dev/null || true' EXIT
    trap 'exit 130' INT TERM
    exec 3<"$root/build/built"
fi
test_build release "${result#* }"
for preset in $others; do
    say "$preset: building"
    result=""
    read -r result <&3 || result="$preset 1"
    test_build "$preset" "${result#* }"
done
/usr/bin/python3 -c 'import torch' 2>/dev/null ||
    say "not run: the tests of gkps.torch, for want of python3-torch; tests/torch.sh installs it and runs them"
/usr/bin/python3 -c 'import pip, setuptools, wheel' 2>/dev/null ||
    say "not run: python_install, for want of python3-pip, -setuptools or -wheel; tests/torch.sh installs them and runs it"
say "took $(($(date +%s) - started)) s"
[ -z "$failures" ] || say "failed:$failures"
printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
