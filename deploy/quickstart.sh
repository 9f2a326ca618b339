#!/bin/sh
# From nothing to a trained model: installs what is missing, builds, and trains on this machine.
# usage: deploy/quickstart.sh [options of gkps run]
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
. "$root/deploy/setup.sh"

case "${1:-}" in
-h | --help)
    printf 'usage: deploy/quickstart.sh [options of gkps run]\n\n'
    printf 'Installs the missing Debian packages, builds gkps in build/release and trains the built-in digits\n'
    printf 'with 2 servers and 4 workers on this machine.  See docs/run.md for the options.\n'
    exit 0
    ;;
esac

# shellcheck disable=SC2086
install_packages $GK_BUILD_PACKAGES
say "building in $root/build/release, which takes less than a minute on two cores"
cmake --preset release -S "$root" -DGK_TESTS=OFF >/dev/null
if [ -t 1 ]; then
    cmake --build "$root/build/release"
else
    cmake --build "$root/build/release" >/dev/null || cmake --build "$root/build/release"
fi
say "training: gkps run $*"
summary="$root/build/quickstart.json"
"$root/build/release/bin/gkps" run --servers 2 --workers 4 --model fnn3 --data digits --compressor gaussk --density 0.01 \
    --summary "$summary" "$@"
say "the programs are in $root/build/release/bin; the summary is in $summary"
