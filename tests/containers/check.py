#!/usr/bin/env python3
"""Goal: deploy/compose.yaml, deploy/Dockerfile and .dockerignore fit the programs that were built, without an engine.
Method: read them and ask the programs: each command line of the compose file has to pass `--print-config`, and the
libraries that the programs load have to be the packages of the image.  Prints one line a finding, exits 1 when there is any.

usage: check.py ROOT BIN        (the repository and the folder of the programs)"""
import functools
import os
import re
import subprocess
import sys

import yaml

PROGRAMS = ("gkps", "gkps-server", "gkps-worker")
# What would give a container more than it needs, with the only value that is allowed.
FORBIDDEN = {"privileged": False, "cap_add": [], "devices": [], "network_mode": None, "pid": None, "ipc": None,
             "userns_mode": None, "ports": [], "user": None}
REQUIRED = {"restart": "on-failure", "read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
STATE = "/var/lib/gkps"
BASE_LIBRARIES = {"libc6", "libgcc-s1", "libstdc++6"}  # of every Debian image that runs C


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()


def substitute(text):
    """Variables of the compose file take their defaults; one without a default would be empty."""
    return re.sub(r"\$\{\w+(?::?-([^}]*))?\}", lambda match: match.group(1) or "", text)


@functools.lru_cache(maxsize=None)
def output(*args, env=()):
    """Exit code and words of a command; asked once."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GKPS_")}
    run = subprocess.run(args, capture_output=True, text=True, check=False, timeout=60, env={**clean, **dict(env)})
    return run.returncode, run.stdout + run.stderr


def flag(command, name):
    """The value of a flag of a command line, the last one counts; None without it."""
    values = [word.split("=", 1)[1] for word in command if word.startswith(f"--{name}=")]
    return values[-1] if values else None


def check_rights(name, service):
    for key, allowed in FORBIDDEN.items():
        if service.get(key, allowed) != allowed:
            yield f"{name}: {key} is {service[key]}"
    for key, wanted in REQUIRED.items():
        if service.get(key) != wanted:
            yield f"{name}: {key} is {service.get(key)}, not {wanted}"


def check_state(name, service, declared):
    if flag(service["command"], "state-dir") != STATE:
        yield f"{name}: no --state-dir={STATE}"
    if service.get("volumes") != [f"{name}:{STATE}"]:
        yield f"{name}: its volumes are {service.get('volumes')}, not its own state at {STATE}"
    if name not in declared:
        yield f"{name}: its volume is not declared"


def check_command(name, service, folder):
    """The program accepts flags and variables, names and values."""
    program, *flags = service["command"]
    expected = "gkps-" + name.split("-")[0]
    if program != expected:
        yield f"{name}: runs {program}, not {expected}"
        return
    variables = {k: str(v) for k, v in (service.get("environment") or {}).items()}
    code, words = output(os.path.join(folder, program), *flags, "--print-config", env=tuple(variables.items()))
    if code != 0:
        yield f"{name}: {program} refuses its options: {words.strip()}"
    _, help_text = output(os.path.join(folder, program), "--help")
    for variable in variables:
        # A variable that no program knows would be ignored without a word.
        option = "--" + variable[5:].lower().replace("_", "-")
        known = option == "--server" or re.search(rf"^ +{option} ", help_text, re.M)
        if variable.startswith("GKPS_") and not known:
            yield f"{name}: {variable} is no option of {program}"


def check_job(servers, workers):
    """All numbers and addresses agree."""
    ports = [flag(service["command"], "bind").rsplit(":", 1)[1] for service in servers.values()]
    addresses = ",".join(f"tcp://{name}:{port}" for name, port in zip(servers, ports))
    for number, (name, service) in enumerate(servers.items()):
        found = (flag(service["command"], "servers"), flag(service["command"], "workers"), service["environment"]["GKPS_SHARD"])
        if name != f"server-{number}" or found != (str(len(servers)), str(len(workers)), number):
            yield f"{name}: servers, workers, shard are {found}, but this is shard {number} of {len(servers)}"
    for number, (name, service) in enumerate(workers.items()):
        found = (flag(service["command"], "servers"), flag(service["command"], "workers"), service["environment"]["GKPS_RANK"])
        if name != f"worker-{number}" or found != (addresses, str(len(workers)), number):
            yield f"{name}: servers, workers, rank are {found}; expected {addresses}, {len(workers)}, {number}"
        if service["environment"].get("GKPS_SERVER") != addresses:
            yield f"{name}: its health check asks {service['environment'].get('GKPS_SERVER')}, not {addresses}"
    if len({flag(service["command"], "job") for service in (*servers.values(), *workers.values())}) != 1:
        yield "the job has more than one name"


def check_compose(root, folder):
    try:
        file = yaml.safe_load(substitute(read(root, "deploy/compose.yaml")))
    except yaml.YAMLError as error:
        yield f"no YAML: {error}"
        return
    services = file["services"]
    for name, service in services.items():
        yield from check_rights(name, service)
        yield from check_state(name, service, file["volumes"])
        yield from check_command(name, service, folder)
        if not os.path.exists(os.path.join(root, "deploy", service["build"]["context"], service["build"]["dockerfile"])):
            yield f"{name}: there is no {service['build']['dockerfile']}"
    yield from check_job({k: v for k, v in services.items() if k.startswith("server-")},
                         {k: v for k, v in services.items() if k.startswith("worker-")})


@functools.lru_cache(maxsize=None)
def packages_of_programs(folder):
    """The packages of the libraries that the programs name, by the name of the library."""
    paths = {}
    for program in PROGRAMS:
        needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", os.path.join(folder, program))[1])
        found = dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", os.path.join(folder, program))[1], re.M))
        # ldd names the dynamic loader by its path alone; it comes with libc.
        paths.update({library: os.path.realpath(found[library]) for library in needed if not library.startswith("ld-linux")})
    packages = {}
    for library, path in paths.items():
        # A package may have put its file into /lib, which is a link to /usr/lib now.
        owners = re.findall(r"^([\w.+-]+)(?::\w+)?: ", output("dpkg", "-S", path, path.removeprefix("/usr"))[1], re.M)
        packages[library] = owners[0] if owners and owners[0] != "dpkg-query" else None
    return packages


def check_packages(runtime, folder):
    packages = packages_of_programs(folder)
    for library, package in packages.items():
        if package is None:
            yield f"{library} is of no Debian package"
    # All builds of OpenBLAS have one interface; which one serves here is this machine's choice.
    needed = {re.sub(r"^(libopenblas0)-.*", r"\1", package) for package in packages.values() if package} - BASE_LIBRARIES
    listed = {re.sub(r"^(libopenblas0)-.*", r"\1", package) for package in runtime}
    for package in sorted(needed - listed):
        yield f"the programs load a library of {package}, which the image does not install"
    for package in sorted(listed - needed):
        yield f"the image installs {package}, of which the programs load nothing"


def check_dockerfile(root, folder):
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", read(root, "deploy/Dockerfile"), flags=re.M))
    stages = re.split(r"^FROM ", text, flags=re.M)[1:]
    bases = [stage.split()[0] for stage in stages]
    if len(stages) != 2 or bases[0] != bases[1]:
        yield f"two stages of one base are expected: the programs load the libraries that they were built with; {bases}"
        return
    build, final = stages
    if "install_packages $GK_BUILD_PACKAGES" not in build or "GK_BUILD_PACKAGES=" not in read(root, "deploy/setup.sh"):
        yield "the build stage does not install the packages of deploy/setup.sh"
    installed = re.search(r"apt-get [^&]*install (.*?)&&", final)
    yield from check_packages([word for word in installed.group(1).split() if not word.startswith("-")], folder)
    users = re.findall(r"^USER (\S+)", final, re.M)
    if not users or not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", users[-1]):
        yield f"the user is {users}, not a number other than 0"
    health = re.search(r"^HEALTHCHECK .*CMD \[(.*)\]", final, re.M)
    words = re.findall(r'"([^"]*)"', health.group(1)) if health else []
    if words[:2] != ["gkps", "status"]:
        yield f"the health check is {words}, not `gkps status`"
        return
    variables = dict(re.findall(r"^ENV (\w+)=(\S+)", final, re.M))
    code, said = output(os.path.join(folder, words[0]), *words[1:], "--print-config", env=tuple(variables.items()))
    if code != 0 or not variables.get("GKPS_SERVER"):
        yield f"gkps status refuses the options of the health check: {said.strip()}"


def check_ignored(root):
    """The build gets all that CMakeLists.txt takes."""
    kept = {line[1:].split("/")[0] for line in read(root, ".dockerignore").splitlines() if line.startswith("!")}
    text = re.sub(r"if\(GK_TESTS\).*?endif\(\)", "", read(root, "CMakeLists.txt"), flags=re.S)
    wanted = {path.split("/")[0] for path in re.findall(r"(?:add_subdirectory|include)\((\w[\w./-]*/?[\w.-]*)\)", text)}
    wanted |= {word for words in re.findall(r"install\((?:FILES|DIRECTORY) ([\w. /]+?) DEST", text) for word in words.split()}
    for path in sorted(wanted - kept):
        if os.path.exists(os.path.join(root, path)):
            yield f"{path} is not in the build context"


def main():
    root, folder = sys.argv[1:3]
    count = 0
    for name, findings in (("deploy/compose.yaml", check_compose(root, folder)),
                           ("deploy/Dockerfile", check_dockerfile(root, folder)), (".dockerignore", check_ignored(root))):
        for what in findings:
            print(f"{name}: {what}")
            count += 1
    print(f"{count} findings")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
