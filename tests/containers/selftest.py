#!/usr/bin/env python3
"""Goal: check.py finds nothing in the repository's files, and each of its rules can fail.
Method: copies of the files with one fault each; the finding must say the words.

usage: selftest.py ROOT BIN"""
import os
import shutil
import sys
import tempfile

import check

COMPOSE, DOCKERFILE, IGNORED = "deploy/compose.yaml", "deploy/Dockerfile", ".dockerignore"
# what, file, text, its replacement, words of the finding
FAULTS = (
    ("a flag that does not exist", COMPOSE, "--steps=", "--stepz=", "--stepz"),
    ("a value that is refused", COMPOSE, "--density=0.01", "--density=7", "density"),
    ("a wrong default", COMPOSE, "GKPS_STEPS:-1000", "GKPS_STEPS:-none", "none"),
    ("a variable that does not exist", COMPOSE, "{GKPS_SHARD: 1}", "{GKPS_SHARD: 1, GKPS_SHARDS: 2}", "GKPS_SHARDS is no"),
    ("no YAML", COMPOSE, "services:", "services: [", "no YAML"),
    ("two shards of one number", COMPOSE, "{GKPS_SHARD: 1}", "{GKPS_SHARD: 0}", "but this is shard 1"),
    ("two workers of one rank", COMPOSE, "GKPS_RANK: 3", "GKPS_RANK: 2", "expected tcp://server-0:5600,tcp://server-1:5600"),
    ("too few workers", COMPOSE, "--workers=4\n    - --bind", "--workers=3\n    - --bind", "but this is shard 0 of 2"),
    ("another port", COMPOSE, "tcp://*:5600", "tcp://*:5601", "expected tcp://server-0:5601"),
    ("two names of a job", COMPOSE, "gkps-worker\n    - --job=digits", "gkps-worker\n    - --job=mnist", "more than one name"),
    ("more rights", COMPOSE, "  cap_drop: [ALL]", "  privileged: true", "privileged is True"),
    ("a capability", COMPOSE, "  cap_drop: [ALL]", "  cap_add: [NET_ADMIN]", "cap_add"),
    ("root", COMPOSE, "  cap_drop: [ALL]", "  user: root", "user is root"),
    ("a published port", COMPOSE, "  cap_drop: [ALL]", "  ports: ['5600:5600']", "ports"),
    ("a finished worker comes back", COMPOSE, "restart: on-failure", "restart: always", "restart is always"),
    ("shared state", COMPOSE, '["worker-1:', '["worker-0:', "worker-1: its volumes"),
    ("state that is not kept", COMPOSE, "  worker-2:\n  worker-3:\n", "  worker-2:\n", "its volume is not declared"),
    ("another folder for the state", COMPOSE, "--state-dir=/var/lib/gkps", "--state-dir=/tmp", "no --state-dir="),
    ("another Dockerfile", COMPOSE, "deploy/Dockerfile", "Dockerfile", "there is no Dockerfile"),
    ("no library", DOCKERFILE, "        libuv1 \\\n", "", "a library of libuv1"),
    ("a library too many", DOCKERFILE, "libuv1 ", "libuv1 libpq5 ", "installs libpq5"),
    ("root in the image", DOCKERFILE, "USER 10001:10001", "USER 0", "a number other than 0"),
    ("a user by name", DOCKERFILE, "USER 10001:10001", "USER gkps", "a number other than 0"),
    ("another base", DOCKERFILE, "FROM debian:bookworm-slim\n", "FROM debian:trixie-slim\n", "of one base"),
    ("packages of its own", DOCKERFILE, "$GK_BUILD_PACKAGES", "gcc cmake", "does not install the packages of"),
    ("no health check", DOCKERFILE, "HEALTHCHECK", "# HEALTHCHECK", "the health check is []"),
    ("a health check that fails", DOCKERFILE, '"--timeout"', '"--time"', "refuses the options of the health check"),
    ("sources that are not sent", IGNORED, "!proto\n", "", "proto is not in the build context"),
    ("a page that is installed and not sent", IGNORED, "!ARCHITECTURE.md\n", "", "ARCHITECTURE.md is not in the build context"),
    ("a folder that is installed and not sent", IGNORED, "!docs\n", "", "docs is not in the build context"),
)


def findings(name, root, folder):
    if name == COMPOSE:
        return list(check.check_compose(root, folder))
    return list(check.check_dockerfile(root, folder) if name == DOCKERFILE else check.check_ignored(root))


def copy_of(root, target):
    for name in os.listdir(root):
        if name not in ("deploy", IGNORED):
            os.symlink(os.path.join(root, name), os.path.join(target, name))
    shutil.copytree(os.path.join(root, "deploy"), os.path.join(target, "deploy"))
    shutil.copy(os.path.join(root, IGNORED), target)


def main():
    root, folder = os.path.abspath(sys.argv[1]), sys.argv[2]
    failed = 0
    with tempfile.TemporaryDirectory() as target:
        copy_of(root, target)
        for name in (COMPOSE, DOCKERFILE, IGNORED):
            for what in findings(name, target, folder):
                print(f"{name}: {what}")
                failed += 1
        for what, name, text, replacement, words in FAULTS:
            good = check.read(target, name)
            with open(os.path.join(target, name), "w", encoding="utf-8") as file:
                file.write(good.replace(text, replacement))
            found = findings(name, target, folder)
            if text not in good or not any(words in finding for finding in found):
                print(f"{what}: no finding says '{words}': {found}")
                failed += 1
            with open(os.path.join(target, name), "w", encoding="utf-8") as file:
                file.write(good)
    print(f"{len(FAULTS)} faults, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
