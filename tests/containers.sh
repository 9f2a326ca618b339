#!/bin/sh
# The image and the compose file for real: a job in containers, a server and a worker killed, one moved to another address.
# Last line: N passed, N failed.
# usage: tests/containers.sh
set -eu

root=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
. "$root/deploy/setup.sh"

case "${1:-}" in
-h | --help)
    printf 'usage: tests/containers.sh\n\n'
    printf 'Installs docker, docker-compose and debootstrap if they are missing, builds the image, and runs jobs of\n'
    printf 'deploy/compose.yaml: undisturbed, on two machines, and with kills and moves to other addresses.\n'
    printf 'Starts an engine of its own where none runs, and removes all that it made but the base image in its cache,\n'
    printf 'the folder that the variable GK_CONTAINERS_CACHE names: /var/tmp/gkps-containers by default.  As root, or with\n'
    printf 'sudo.\n'
    exit 0
    ;;
"") ;;
*) fail "unknown argument '$1': expected nothing" ;;
esac

[ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1 || fail "only root can start containers here: run it as root"
# Another engine's packages serve as well.
wanted="debootstrap python3 procps"
command -v dockerd >/dev/null 2>&1 && docker --version >/dev/null 2>&1 || wanted="$wanted docker.io"
command -v docker-compose >/dev/null 2>&1 || docker compose version >/dev/null 2>&1 || wanted="$wanted docker-compose"
# shellcheck disable=SC2086
install_packages $wanted
as_root env GK_CONTAINERS_CACHE="${GK_CONTAINERS_CACHE:-}" PYTHONDONTWRITEBYTECODE=1 python3 "$root/tests/containers/run.py"
