#!/bin/sh
# Trains one PyTorch script with DDP and with gkps on four boxes joined by slow links, and prints what each needed.
# usage: tests/compare/run.sh [OPTION ...]      --help lists them
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/../.." && pwd)
. "$root/deploy/setup.sh"

python=/usr/bin/python3
build=
for argument in "$@"; do
    case "$argument" in
    -h | --help)
        exec python3 "$root/tests/compare/compare.py" --help
        ;;
    --python=*) python=${argument#--python=} ;;
    --build=*) build=${argument#--build=} ;;
    esac
done
[ "$(id -u)" = 0 ] || fail "this makes network namespaces, which only root may do: run it as root"

packages="iproute2 python3"
[ "$python" != /usr/bin/python3 ] || packages="$packages python3-torch"
if [ -z "$build" ]; then
    build="$root/build/release"
    packages="$packages $GK_BUILD_PACKAGES"
fi
# shellcheck disable=SC2086
install_packages $packages
if [ "$build" = "$root/build/release" ]; then
    say "building in $build"
    cmake --preset release -S "$root" >/dev/null
    cmake --build "$build" --target gkps-server gkps_shared >/dev/null
fi

# Everything happens in namespaces of this name.  compare.py removes them itself; this is for the case that it is killed.
name="gkcmp$$"
child=
spaces() {
    ip netns list | sed -n "s/^\($name-[a-z0-9]*\).*/\1/p"
}
sweep() {
    code=$?
    trap - EXIT INT TERM HUP
    set +e # each step is tried, whatever became of the one before; what is left at the end is what counts
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null
        wait "$child"
    fi
    for space in $(spaces); do
        for pid in $(ip netns pids "$space"); do
            kill -9 "$pid" 2>/dev/null
        done
        ip netns del "$space"
    done
    left=$(spaces)
    if [ -n "$left" ]; then
        say "these namespaces could not be removed: $(echo "$left" | tr '\n' ' ')"
        [ "$code" != 0 ] || code=1
    fi
    exit "$code"
}
trap sweep EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
"$python" "$root/tests/compare/compare.py" --name "$name" --build "$build" "$@" &
child=$!
code=0
wait "$child" || code=$?
child=
exit "$code"
