"""The engine of tests/containers: a dockerd of our own where none runs, the base image, and proof that nothing is left."""
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BASE = "debian:bookworm-slim"
SUITE = "bookworm"
CACHE = os.environ.get("GK_CONTAINERS_CACHE") or "/var/tmp/gkps-containers"
FIXED = ("/run/containerd/s", "/run/docker/plugins")  # what an engine makes wherever its folders are told to be
KINDS = {"container": ["ps", "-aq", "--no-trunc"], "network": ["network", "ls", "-q", "--no-trunc"],
         "volume": ["volume", "ls", "-q"], "image": ["images", "-aq", "--no-trunc"]}


class Failure(Exception):
    pass


def say(text):
    print(f"==> {text}", flush=True)


def expect(condition, what):
    if not condition:
        raise Failure(what)


def wait_until(condition, what, deadline_s=120):
    """Poll until condition() gives something true, and return it."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"not within {deadline_s} s: {what}")
        time.sleep(0.1)


def environment():
    """Ours without what would configure the job or docker-compose from outside."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GKPS_", "COMPOSE_"))}


def call(*args, check=True, timeout=120, env=None, **options):
    """Run a command to its end; its output, both streams together unless `stderr` says otherwise."""
    options.setdefault("stderr", subprocess.STDOUT)
    run = subprocess.run(args, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, check=False, timeout=timeout,
                         env=env or environment(), **options)
    if check and run.returncode != 0:
        raise Failure(f"exit code {run.returncode}: {' '.join(args)}\n{run.stdout}{run.stderr or ''}")
    return run.stdout


def docker(*args, **options):
    return call("docker", *args, **options)


def answers():
    try:
        return subprocess.run(["docker", "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                              timeout=30).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def below(folder):
    """What is mounted below a folder, the deepest first."""
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        return sorted((path for path in (line.split()[1] for line in mounts) if path.startswith(folder + "/")), reverse=True)


def control_groups():
    """The engine's control groups, the deepest first: it leaves them behind, empty."""
    return [path for top, folders, _ in os.walk("/sys/fs/cgroup", topdown=False) for path in
            (os.path.join(top, folder) for folder in folders) if "/docker" in path]


class Engine:
    """Ours keeps all it has in two folders of its own, and leaves the host's firewall and routes as they are: containers
    of one network reach each other without them, and get nowhere else."""

    def __init__(self):
        self.process = None
        self.folder = self.run_folder = self.log = None

    def start(self):
        if answers():
            say("a docker engine runs: it is used")
            return
        os.makedirs(CACHE, exist_ok=True)
        self.folder = tempfile.mkdtemp(prefix="engine-", dir=CACHE)
        self.run_folder = tempfile.mkdtemp(prefix="gkps-", dir="/run")  # short: it holds socket paths
        self.log = os.path.join(self.folder, "dockerd.log")
        self.had_groups, self.fixed = bool(control_groups()), [path for path in FIXED if not os.path.exists(path)]
        os.environ["DOCKER_HOST"] = f"unix://{self.run_folder}/docker.sock"
        for extra in ([], ["--storage-driver=vfs"]):
            say(f"no docker engine runs: starting dockerd {' '.join(extra)}".rstrip())
            if self.try_start(extra):
                return
            self.end_process()
        with open(self.log, encoding="utf-8", errors="replace") as log:
            raise Failure("dockerd does not start:\n" + "".join(log.readlines()[-20:]))

    def try_start(self, extra):
        with open(self.log, "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                ["dockerd", "--host", os.environ["DOCKER_HOST"], "--data-root", f"{self.folder}/data", "--exec-root",
                 f"{self.run_folder}/exec", "--pidfile", f"{self.run_folder}/pid", "--bridge=none",
                 "--iptables=false", "--ip-forward=false", "--ip-masq=false", *extra],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(), start_new_session=True)
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            if answers():
                return True
            time.sleep(0.2)
        return False

    def end_process(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def left_behind(self):
        """Mounts, control groups, and processes that name one of our folders, as the engine's own children do."""
        left = [path for path in self.fixed if os.path.exists(path)] + below(self.folder) + below(self.run_folder)
        left += ([] if self.had_groups else control_groups())
        return left + [line for line in call("ps", "-eo", "pid=,args=").splitlines()
                       if self.folder in line or self.run_folder in line]

    def stop(self):
        """End ours, if there is one, with all that it has; what stays behind is a failure."""
        if not self.folder:
            return
        self.end_process()
        for path in below(self.folder) + below(self.run_folder):
            call("umount", path, check=False)
        for path in [] if self.had_groups else control_groups():
            with contextlib.suppress(OSError):
                os.rmdir(path)
        for path in self.fixed:
            with contextlib.suppress(OSError):  # it is somebody's by now, or never was
                os.removedirs(path)
        left = self.left_behind()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.run_folder, ignore_errors=True)
        del os.environ["DOCKER_HOST"]
        expect(not left, f"the engine left behind: {left}")
        expect(not os.path.exists(self.folder) and not os.path.exists(self.run_folder), "the engine's folders are still here")


class Inventory:
    """What the engine had before the test."""

    def __init__(self):
        self.found = self.now()
        self.had_base = self.has(BASE)

    @staticmethod
    def now():
        return {kind: set(docker(*args).split()) for kind, args in KINDS.items()}

    @staticmethod
    def has(image):
        return bool(docker("images", "-q", image).strip())

    def remove_images(self, tags, build_log):
        """By tag, and what the builder made on the way: it names each image that it made or took from its cache."""
        for tag in tags:
            docker("rmi", "-f", tag, check=False)
        made = set(re.findall(r"^ ---> ([0-9a-f]{12})$", build_log, re.M))
        while True:
            new = self.now()["image"] - self.found["image"]
            ours = [image for image in new if image.removeprefix("sha256:")[:12] in made]
            # One that others stand on refuses; it goes when they have gone.
            removed = [image for image in ours if "Error" not in docker("rmi", image, check=False)]
            if not removed:
                return

    def expect_same(self):
        left = {kind: ids - self.found[kind] for kind, ids in self.now().items()}
        gone = {kind: ids - self.now()[kind] for kind, ids in self.found.items()}
        expect(not any(left.values()), f"left behind: {left}")
        expect(not any(gone.values()), f"removed though it was not ours: {gone}")


def sources_of_host():
    lines = call("apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Identifier: Packages",
                 "Origin: Debian", check=False, stderr=subprocess.DEVNULL).splitlines()
    return [line for line in lines if line.split()[2].split("-")[0] == SUITE]


def make_base():
    """A small root from the host's own package sources, as a tar file in the cache."""
    tar = os.path.join(CACHE, "debian-bookworm-slim.tar")
    if os.path.exists(tar):
        return tar
    os.makedirs(CACHE, exist_ok=True)
    sources = sources_of_host()
    mirror = [line.split()[1] for line in sources if line.split()[2] == SUITE][:1]
    with tempfile.TemporaryDirectory(prefix="root-", dir=CACHE) as root:
        say("making the base image with debootstrap")
        call("debootstrap", "--variant=minbase", SUITE, root, *mirror, timeout=900)
        if sources:
            with open(os.path.join(root, "etc/apt/sources.list"), "w", encoding="utf-8") as file:
                file.write("".join(f"{line}\n" for line in sources))
        for folder in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(os.path.join(root, folder))
            os.mkdir(os.path.join(root, folder))
        call("tar", "-C", root, "-cf", tar + ".new", ".", timeout=300)
    os.rename(tar + ".new", tar)
    return tar


def provide_base():
    """Images are not pulled here: a registry may be out of reach, and what it has changes."""
    if Inventory.has(BASE):
        say(f"the engine has {BASE}")
        return
    docker("import", make_base(), BASE, timeout=300)


def end_on_signals():
    """A test that is ended cleans up, too."""
    def end(number, _frame):
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
