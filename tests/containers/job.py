"""A job of deploy/compose.yaml under docker-compose, as an operator handles it, and the look inside that a test needs."""
import json
import os
import re
import shutil
import signal
import subprocess

from engine import Failure, call, docker, environment, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SERVERS = ("server-0", "server-1")
WORKERS = ("worker-0", "worker-1", "worker-2", "worker-3")
SERVICES = SERVERS + WORKERS
ADDRESSES = "tcp://server-0:5600,tcp://server-1:5600"


class Job:
    """`services`: those that this machine runs; `more`: another compose file; `addresses`: of the servers."""

    def __init__(self, project, image, steps, services=SERVICES, more=(), addresses=ADDRESSES):
        self.project, self.services, self.addresses = project, services, addresses
        self.program = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
        self.files = ["-p", project, "-f", os.path.join(ROOT, "deploy", "compose.yaml"), "-f",
                      os.path.join(HERE, "override.yaml")]
        self.more = [word for file in more for word in ("-f", file)]
        self.variables = {"GKPS_IMAGE": image, "GKPS_STEPS": str(steps), "GKPS_ADDRESSES": addresses,
                          "DOCKER_BUILDKIT": "0"}

    def compose(self, *args, **options):
        return call(*self.program, *self.files, *self.more, *args, env={**environment(), **self.variables}, cwd=ROOT, **options)

    def start(self):
        self.compose("up", "-d", "--no-build", *self.services)

    def start_attached(self, log):
        """`docker-compose up` as typed: it ends when all containers have."""
        return subprocess.Popen([*self.program, *self.files, *self.more, "up"], env={**environment(), **self.variables}, cwd=ROOT,
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def container(self, service):
        """Its id, or None."""
        ids = docker("ps", "-aq", "--no-trunc", "--filter", f"label=com.docker.compose.project={self.project}", "--filter",
                     f"label=com.docker.compose.service={service}").split()
        return ids[0] if ids else None

    def inspect(self, service):
        """What the engine says of the container of a service; None without one."""
        found = self.container(service)
        try:
            return json.loads(docker("inspect", found))[0] if found else None
        except Failure:
            return None  # it went meanwhile

    def pid(self, service):
        return self.inspect(service)["State"]["Pid"]

    def health(self, service):
        seen = self.inspect(service)
        return seen and seen["State"].get("Health", {}).get("Status")

    def address(self, service):
        return self.inspect(service)["NetworkSettings"]["Networks"][self.network()]["IPAddress"]

    def network(self):
        return f"{self.project}_default"

    def logs(self, service):
        return docker("logs", self.container(service))

    def version(self):
        """The version that every shard has, as `gkps status` in a worker's container says; -1: not all answer."""
        found = self.container("worker-0")
        text = docker("exec", found, "gkps", "status", "--json", "--server", self.addresses, check=False,
                      stderr=subprocess.DEVNULL) if found else ""
        try:
            return min(server["status"]["version"] for server in json.loads(text)["servers"])
        except (ValueError, TypeError, KeyError):
            return -1

    def wait_version(self, version, what):
        """Until all shards have it; returns the one they have then."""
        def reached():
            have = self.version()
            return have if have >= version else None

        return wait_until(reached, f"version {version} {what}; it is {self.version()}")

    def kill(self, service):
        """By signal 9 from outside, as the kernel does when memory runs out: for the engine's own `kill` no restart policy
        applies.  Returns when another process runs in its place."""
        before = self.inspect(service)
        os.kill(before["State"]["Pid"], signal.SIGKILL)

        def came_back():
            now = self.inspect(service)
            return now and now["State"]["Running"] and now["State"]["Pid"] not in (0, before["State"]["Pid"]) and \
                now["RestartCount"] > before["RestartCount"]

        wait_until(came_back, f"{service} comes back after signal 9")

    def wait_end(self, deadline_s=300):
        """Until no container runs."""
        wait_until(lambda: not any(self.inspect(service)["State"]["Running"] for service in self.services), "the end of the job",
                   deadline_s)

    def ends(self):
        return {service: (state["State"]["ExitCode"], state["RestartCount"])
                for service, state in ((service, self.inspect(service)) for service in self.services)}

    def hashes(self):
        """The hash of each shard's model at the end, as the servers logged it."""
        found = [re.findall(r"finished at version (\d+), model hash of this shard ([0-9a-f]{16})", self.logs(service))
                 for service in self.services if service in SERVERS]
        if not all(found):
            raise Failure(f"a server did not say its hash: {found}\n{self.last_words()}")
        return [shard[-1] for shard in found]

    def last_words(self):
        """The end of each log, for a failure."""
        words = []
        for service in self.services:
            if self.container(service):
                words.append(f"-- {service}:\n" + "\n".join(self.logs(service).splitlines()[-8:]))
        return "\n".join(words)

    def remove(self):
        self.more = []  # their files may be gone, and change nothing about what to remove
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5", check=False)
