#!/bin/sh
# Everything that only a real GPU can show, in one run of under eight minutes: the CUDA tables against the CPU's on the
# device, compute-sanitizer over small sizes, registers, and what selection, replay and the gradients of models cost.  One
# table at the end, which is also left as a file.  Needs nvcc, cuBLAS, CMake, a C++ compiler, Python and a GPU, and nothing
# else that gkps is made of.
#
# usage: tests/gpu/check.sh [--emulated] [FOLDER]       FOLDER: where to build (default: build/gpu)
#        --emulated: the same programs on the SIMT emulator, to see that they build and pass; no figure means anything
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
emulated=no
folder=""
for argument in "$@"; do
    case "$argument" in
    --emulated) emulated=yes ;;
    -h | --help)
        sed -n '2,9s/^# \{0,1\}//p' "$0"
        exit 0
        ;;
    -*)
        echo "error: unknown option '$argument': expected --emulated" >&2
        exit 2
        ;;
    *) folder=$argument ;;
    esac
done
[ -n "$folder" ] || folder="$root/build/gpu"

seconds_max=465
began=$(date +%s)
failed=0
omitted=0

fail() {
    echo "error: $*" >&2
    exit 1
}

say() {
    printf '==> %s\n' "$*"
}

left() {
    echo $((seconds_max - ($(date +%s) - began)))
}

# A line of the table: what, how it ended, a word about it.
row() {
    printf '%-34s %-9s %s\n' "$1" "$2" "$3" >>"$rows"
    say "$1: $2 $3"
    case "$2" in
    FAILED) failed=$((failed + 1)) ;;
    "left out") omitted=$((omitted + 1)) ;;
    esac
}

# attempt NAME SECONDS COMMAND...: bounded by its own limit and by what is left; its words go to a log.
attempt() {
    name=$1
    limit=$2
    shift 2
    remaining=$(left)
    if [ "$remaining" -lt 5 ]; then
        row "$name" "left out" "no time was left"
        return
    fi
    [ "$limit" -lt "$remaining" ] || limit=$remaining
    log="$folder/$(echo "$name" | tr ' /' '__').log"
    start=$(date +%s)
    code=0
    timeout "$limit" "$@" >"$log" 2>&1 || code=$?
    took=$(($(date +%s) - start))
    case "$code" in
    0) row "$name" ok "$(tail -n 1 "$log" | cut -c 1-80), ${took} s" ;;
    124) row "$name" FAILED "did not end within $limit s; $log" ;;
    *)
        tail -n 20 "$log"
        row "$name" FAILED "code $code, ${took} s; $log"
        ;;
    esac
}

find_nvcc() {
    for candidate in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
        if [ -n "$candidate" ] && [ -x "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
}

for program in cmake c++ python3 timeout; do
    command -v "$program" >/dev/null 2>&1 || fail "$program is not here; this script needs cmake, c++, python3 and coreutils"
done
if [ "$emulated" = no ]; then
    nvcc=$(find_nvcc)
    [ -n "$nvcc" ] || fail "nvcc is not here: put it on the PATH, or set CUDACXX to it (--emulated needs none)"
    # Where cuBLAS lies beside nvcc, it need not be on the loader's paths.
    export LD_LIBRARY_PATH="$(dirname "$(dirname "$nvcc")")/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    command -v nvidia-smi >/dev/null 2>&1 || fail "there is no nvidia-smi: no NVIDIA driver on this machine (--emulated needs none)"
    nvidia-smi -L 2>/dev/null | grep -q '^GPU' || fail "nvidia-smi finds no GPU on this machine (--emulated needs none)"
fi

mkdir -p "$folder"
rows="$folder/rows"
results="$folder/results.txt"
: >"$rows"
rm -f "$results" "$folder/measurements.log" "$folder/gradients.log"

say "building in $folder"
say "left out of this build, because their libraries may be missing here: the daemons, the tool; shims take the places of OpenBLAS, Random123 and Criterion"
if [ "$emulated" = yes ]; then
    device="SIMT emulator: no figure means anything"
    attempt configure 60 cmake -S "$root/tests/gpu" -B "$folder" -DGK_EMULATED=ON
else
    device=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1)
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d . || true)
    case "$capability" in
    '' | *[!0-9]*) capability="80-real;90" ;;
    esac
    attempt configure 90 cmake -S "$root/tests/gpu" -B "$folder" -DCMAKE_CUDA_COMPILER="$nvcc" "-DCMAKE_CUDA_ARCHITECTURES=$capability"
fi
attempt build 240 cmake --build "$folder" -j "$(nproc)"
[ "$failed" = 0 ] || fail "nothing to run: see $folder/configure.log and $folder/build.log"

for noun in vector apply sum nonfinite select; do
    attempt "equal to the CPU: $noun" 60 "$folder/gpu_$noun"
done
layers=$(cd "$root/tests/unit" && ls layer_*.c | sed 's/\.c$//')
for noun in $layers; do
    attempt "equal to the CPU: $noun" 60 "$folder/gpu_$noun"
done
if [ "$emulated" = no ]; then
    sanitizer=$(command -v compute-sanitizer || true)
    [ -n "$sanitizer" ] || sanitizer=$(dirname "$nvcc")/compute-sanitizer
    for tool in memcheck racecheck; do
        for noun in apply sum vector select $layers; do
            # Kernels of cuBLAS, beside those of the other rows.
            case "$noun" in layer_gemm | layer_models) continue ;; esac
            if [ -x "$sanitizer" ]; then
                attempt "$tool: $noun" 40 "$sanitizer" --tool "$tool" --error-exitcode 9 "$folder/gpu_${noun}_small"
            else
                row "$tool: $noun" "left out" "there is no compute-sanitizer"
            fi
        done
    done
    attempt "registers" 60 python3 "$root/tests/gpu/spills.py" "$nvcc" "$root"
    attempt "measurements" 120 "$folder/gpu_bench" 20 29
    attempt "gradients" 60 "$folder/gpu_models" 128 15 resnet20 vgg16
else
    attempt "measurements" 120 "$folder/gpu_bench" 12 14
    attempt "gradients" 120 "$folder/gpu_models" 1 1 resnet20 vgg16
fi

{
    echo "device: $device"
    echo "commit: $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo
    cat "$rows"
    echo
    for log in measurements gradients; do
        if [ -f "$folder/$log.log" ]; then
            cat "$folder/$log.log"
        else
            echo "no $log"
        fi
        echo
    done
    echo "took $(($(date +%s) - began)) s, $failed failed, $omitted left out"
} | tee "$results"
say "this table is in $results"
# What was not looked at is not proven either.
[ "$omitted" = 0 ] || say "$omitted checks were left out: this is no proof of the whole"
[ "$((failed + omitted))" = 0 ]
