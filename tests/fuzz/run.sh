#!/bin/sh
# Builds the fuzz targets with clang and libFuzzer in build/fuzz and runs them with their corpora (docs/fuzzing.md).
# usage: tests/fuzz/run.sh [-j JOBS] [SECONDS_PER_TARGET [TARGET...]]     default: 30 seconds each, all targets, one at a time
# One line a target; exits 1 when anything was found.  The inputs that failed lie in build/fuzz/found.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=${GK_FUZZ_BUILD:-$root/build/fuzz}
all="header bodies frames server worker spec config idx samples state"

fail() {
    printf '%s: %s\n' "$0" "$*" >&2
    exit 64
}

# One target: what libFuzzer found goes to found/, what it learned to learned/; prints its line.
run_one() {
    target=$1
    seconds=$2
    learned=$build/learned/$target
    log=$build/$target.log
    found=$build/found/$target
    seeds=$build/seeds/$target
    dictionary=$here/$target.dict
    mkdir -p "$learned" "$found" "$seeds"
    rm -f "$found"/*
    set -- -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -malloc_limit_mb=512 -max_len=16384 -print_final_stats=1
    if [ -f "$dictionary" ]; then
        set -- "$@" -dict="$dictionary"
    fi
    code=0
    (cd "$found" && "$build/tests/fuzz/fuzz_$target" "$@" "$learned" "$here/corpus/$target" "$seeds") >"$log" 2>&1 || code=$?
    count=$(find "$found" -type f | wc -l)
    if [ "$code" != 0 ] && [ "$count" = 0 ]; then
        count=1 # it did not even start
    fi
    awk -v target="$target" -v found="$count" '
        /stat::number_of_executed_units/ { runs = $2 }
        / cov: / { for (i = 1; i < NF; i++) { if ($i == "cov:") cov = $(i + 1); if ($i == "ft:") ft = $(i + 1);
                   if ($i == "corp:") corpus = $(i + 1) } if ($1 ~ /^#/) last = substr($1, 2) }
        END { printf "%-8s %10d executions, %5d edges, %6d features, corpus %-14s findings %d\n", target, (runs ? runs : last), cov, ft,
              corpus ",", found }' "$log"
    if [ "$count" != 0 ]; then
        printf '  inputs in %s, output in %s\n' "$found" "$log"
        return 1
    fi
}

if [ "${1:-}" = --one ]; then
    run_one "$3" "$2"
    exit
fi
jobs=1
if [ "${1:-}" = -j ]; then
    jobs=${2:?a number of jobs}
    shift 2
fi
case "${1:-}" in
-h | --help)
    sed -n '2,4s/^# //p' "$0"
    exit 0
    ;;
esac
seconds=${1:-30}
[ "$#" -gt 0 ] && shift
case "$seconds" in
*[!0-9]* | "") fail "'$seconds' is not a number of seconds" ;;
esac
[ "$#" -gt 0 ] || set -- $all

mkdir -p "$build"
if ! { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_COMPILER=clang -DGK_FUZZ=ON &&
    cmake --build "$build" --target fuzz; } >"$build/build.log" 2>&1; then
    tail -n 40 "$build/build.log"
    fail "the build failed"
fi
"$build/tests/fuzz/fuzz_seeds" "$build/seeds" 2>"$build/seeds.log" || fail "no seeds: $(cat "$build/seeds.log")"

# The canary has a planted bug: a machine that cannot find it finds nothing.
rm -rf "$build/canary"
mkdir -p "$build/canary"
cp "$build"/seeds/frames/push-* "$build/canary"
if (cd "$build/canary" && "$build/tests/fuzz/fuzz_canary" -max_total_time=60 .) >"$build/canary.log" 2>&1 ||
    ! grep -q "planted: one beyond" "$build/canary.log"; then
    fail "the canary's bug was not found in 60 s, see $build/canary.log"
fi
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 "$0" --one "$seconds"
