#!/bin/sh
# Tests that take too long for every build: the same programs as in ctest, with larger numbers.
# usage: tests/soak/run.sh reconnects|frozen|all [BIN]      BIN: folder of the programs; build/release/bin when not given
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
bin=${2:-$root/build/release/bin}
case "${1:-}" in
reconnects) tests=test_reconnects ;;
frozen) tests=test_frozen_reader ;;
all) tests="test_reconnects test_frozen_reader" ;;
-h | --help)
    sed -n '2,3s/^# //p' "$0"
    printf 'reconnects: 10 000 connections that come and go beside a job\nfrozen: a reader that reads nothing for a minute\n'
    exit 0
    ;;
*)
    printf 'unknown argument "%s": expected reconnects, frozen or all\n' "${1:-}" >&2
    exit 64
    ;;
esac
# shellcheck disable=SC2086
GKPS_TEST_RECONNECTS=10000 GKPS_TEST_FROZEN_S=60 exec python3 "$root/tests/integration/test_memory.py" "$bin" $tests
