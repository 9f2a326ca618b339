#!/bin/sh
# Runs the tests of gkps.torch and of the examples.  Last line: N passed, N failed.
# usage: tests/torch.sh [PYTHON]       PYTHON: one with another torch than Debian's
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
. "$root/deploy/setup.sh"

case "${1:-}" in
-h | --help)
    printf 'usage: tests/torch.sh [PYTHON]\n\n'
    printf 'Installs the missing Debian packages (python3-torch: 150 MB to fetch, 630 MB on the disk), builds in build/release and\n'
    printf 'runs the tests of gkps.torch and of the examples: under Python of Debian, or under PYTHON, which has a torch.\n'
    exit 0
    ;;
esac
python=${1:-/usr/bin/python3}
torch_packages=""
[ $# -gt 0 ] || torch_packages="python3-torch python3-pip python3-setuptools python3-wheel"
# shellcheck disable=SC2086
install_packages $GK_BUILD_PACKAGES $GK_TEST_PACKAGES $torch_packages
"$python" -c 'import torch; print("==> torch", torch.__version__)' || fail "$python has no torch"
cmake --preset release -S "$root" -DGK_TESTS=ON "-DGK_TORCH_PYTHON=$python" -DGK_TORCH_ALL=ON >/dev/null
cmake --build "$root/build/release" --target gkps gkps-server gkps-worker gkps_shared gk_python_stub
junit="$root/build/torch-tests.xml"
rm -f "$junit"
code=0
(cd "$root" && ctest --preset release -R '^(torch|python)_' --output-junit "$junit") || code=$?
counts=$(python3 "$root/tests/count.py" "$junit" "$root/build/torch-failures.txt") || counts="0 1"
cmake --preset release -S "$root" -DGK_TORCH_PYTHON=/usr/bin/python3 -DGK_TORCH_ALL=OFF >/dev/null
"$python" -c 'import pip, setuptools, wheel' 2>/dev/null || say "not run: python_install, for $python has no pip, setuptools or wheel"
printf '%d passed, %d failed\n' "${counts% *}" "${counts#* }"
[ "$code" = 0 ] && [ "${counts#* }" = 0 ]
