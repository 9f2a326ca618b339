# Sourced by quickstart.sh and tests/run.sh: installs the Debian packages that are missing.
# shellcheck shell=sh

GK_BUILD_PACKAGES="gcc cmake ninja-build pkg-config libc6-dev libzmq3-dev libuv1-dev libprotobuf-c-dev protobuf-c-compiler \
libopenblas-dev zlib1g-dev libisal-dev libxxhash-dev librandom123-dev libjansson-dev libcyaml-dev libyaml-dev"
GK_TEST_PACKAGES="g++ clang libclang-rt-14-dev libcriterion-dev clang-format-14 python3 python3-yaml procps"

say() {
    printf '==> %s\n' "$*"
}

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# Run as root: directly, or through sudo.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        sudo "$@"
    else
        return 1
    fi
}

missing_packages() {
    for package in "$@"; do
        status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$status" = installed ] || printf '%s ' "$package"
    done
}

install_packages() {
    command -v apt-get >/dev/null 2>&1 || fail "apt-get is not here: this script knows Debian 12; install what these are elsewhere: $*"
    missing=$(missing_packages "$@")
    if [ -z "$missing" ]; then
        say "all $# Debian packages are installed"
        return
    fi
    if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null 2>&1; then
        fail "packages are missing and only root may install them: as root, run: apt-get install $missing"
    fi
    say "installing Debian packages: $missing"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q update
    # One word a package.
    # shellcheck disable=SC2086
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends $missing
}
