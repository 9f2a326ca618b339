"""What the integration tests share: starting daemons as a launcher does, running the tool, and a small test runner.

A test is a function named test_*; main() runs them all and prints `N passed, N failed`.  Nothing sleeps for a guessed
time: tests wait for events of the daemons, for the end of processes, or for a condition, each with a deadline."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

BIN = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "..", "build", "release", "bin")
DEADLINE_S = 120


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


def wait_until(condition, what, deadline_s=DEADLINE_S):
    """Poll until condition() gives something true, and return it."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failure(f"not within {deadline_s} s: {what}")
        time.sleep(0.02)


def program(name):
    return os.path.join(BIN, name)


def environment(**extra):
    """The environment without what would configure the programs from outside."""
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("GKPS_") and k not in ("RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK")}
    env.update({k: str(v) for k, v in extra.items()})
    return env


class Run:
    """`gkps run` in the background, read as it goes, killed with the `with` block.  `marker` stands in the command line of
    each of its daemons."""

    def __init__(self, marker, *args, env=None):
        self.marker = marker
        self.lines = []
        self.changed = threading.Condition()
        self.ended = False
        self.process = subprocess.Popen([program("gkps"), "run", *map(str, args)], text=True, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        env=env or environment())
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not processes_of(self.marker), f"processes of {self.marker} are left", 30)

    def read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()

    def text(self):
        return "".join(self.lines)

    def steps(self):
        return [int(m.group(1)) for m in (re.match(r"step (\d+)/", line) for line in self.lines) if m]

    def wait_steps(self, step):
        """Until a progress line tells that every worker has done so many steps."""
        with self.changed:
            self.changed.wait_for(lambda: self.ended or any(s >= step for s in self.steps()), DEADLINE_S)
            expect(any(s >= step for s in self.steps()), f"step {step} was not reached:\n{self.text()}")

    def daemon(self, flag):
        """The process id of the daemon with this flag, once it is there."""
        def look():
            expect(not self.ended, f"the run ended:\n{self.text()}")
            for pid in processes_of(self.marker):
                try:
                    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
                        arguments = file.read().split("\0")
                except OSError:
                    continue
                if flag in arguments and "--launcher-fd=3" in arguments:
                    return pid
            return None
        return wait_until(look, f"a daemon with {flag}")

    def kill(self, flag):
        pid = self.daemon(flag)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait(self):
        try:
            code = self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            expect(False, f"the run is still there after {DEADLINE_S} s:\n{self.text()}")
        self.reader.join(DEADLINE_S)
        return code


class Daemon:
    """One daemon with a line to us, as if we were the launcher."""

    def __init__(self, name, *args, env=None):
        ours, theirs = socket.socketpair()
        self.log = tempfile.TemporaryFile(mode="w+")
        self.events = []
        self.changed = threading.Condition()
        fd = theirs.fileno()
        self.process = subprocess.Popen(self.command(name, [*map(str, args), "--launcher-fd", str(fd)]), pass_fds=[fd],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env=env or environment())
        theirs.close()
        self.line = ours
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def command(self, name, args):
        return [program(name), *args]

    def read(self):
        with self.line.makefile("r") as lines:
            for line in lines:
                with self.changed:
                    self.events.append(json.loads(line))
                    self.changed.notify_all()
        with self.changed:
            self.events.append({"event": "end"})
            self.changed.notify_all()

    def find(self, kind):
        return next((e for e in self.events if e["event"] == kind), None)

    def wait_event(self, kind, deadline_s=DEADLINE_S):
        with self.changed:
            self.changed.wait_for(lambda: self.find(kind) or self.find("end"), deadline_s)
            found = self.find(kind)
        expect(found, f"no event '{kind}' from {self.process.args[0]}; its log:\n{self.text()}")
        return found

    def wait(self, deadline_s=DEADLINE_S):
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise Failure(f"{self.process.args[:4]} is still there after {deadline_s} s; its log:\n{self.text()}") from None
        self.reader.join(DEADLINE_S)
        return code

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def wait_text(self, pattern, deadline_s=DEADLINE_S):
        try:
            return wait_until(lambda: re.search(pattern, self.text()), f"log line {pattern}", deadline_s)
        except Failure as failure:
            raise Failure(f"{failure}; its log:\n{self.text()}") from None

    def stop(self):
        """End it whatever it does; only for cleaning up."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.line.close()


class Cluster:
    """Daemons that end with the `with` block."""

    def __init__(self):
        self.daemons = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for daemon in self.daemons:
            daemon.stop()

    def start(self, name, *args, env=None):
        daemon = Daemon(name, *args, env=env)
        self.daemons.append(daemon)
        return daemon

    def server(self, shard=0, servers=1, workers=1, *args, bind="tcp://127.0.0.1:*"):
        return self.start("gkps-server", "--bind", bind, "--shard", shard, "--servers", servers, "--workers", workers, *args)

    def worker(self, rank, workers, addresses, *args):
        return self.start("gkps-worker", "--servers", ",".join(addresses), "--rank", rank, "--workers", workers, *args)


def address_of(server):
    return server.wait_event("endpoint")["address"]


def free_addresses(count):
    """Addresses whose ports were free a moment ago, for daemons that must know each other before they start."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
    addresses = [f"tcp://127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def gkps(*args, deadline_s=300, env=None):
    """Run the tool to its end: (exit code, stdout, stderr)."""
    run = subprocess.run([program("gkps"), *map(str, args)], capture_output=True, text=True, timeout=deadline_s, check=False,
                         stdin=subprocess.DEVNULL, env=env or environment())
    return run.returncode, run.stdout, run.stderr


def train(*args):
    """gkps run to its end; the summary."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "summary.json")
        code, out, err = gkps("run", "--summary", path, *args)
        expect(code == 0, f"gkps run {args} ended with {code}:\n{out}\n{err}")
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def job_hash(servers):
    """The model hash of a job from its servers' summaries, and the version."""
    summaries = [s.wait_event("summary") for s in servers]
    expect(len({s["version"] for s in summaries}) == 1, f"the shards end at different versions: {summaries}")
    return f"{sum(int(s['model_hash'], 16) for s in summaries) % 2**64:016x}", summaries[0]["version"]


def processes_of(marker, environment=False):
    """Ids of living processes whose command line, or also environment, holds the marker."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                text = file.read()
            if environment:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    text += file.read()
            with open(f"/proc/{pid}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if marker.encode() in text and state != b"Z" and int(pid) != os.getpid():
            found.append(int(pid))
    return found


class Skipped(Exception):
    pass


def skip(why):
    """This machine cannot show it: counted and said, neither passed nor failed."""
    raise Skipped(why)


def resident(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(module):
    passed = failed = skipped = 0
    only = sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit(143))
    for name, test in list(module.items()):
        if not name.startswith("test_") or not callable(test) or (only and name not in only):
            continue
        start = time.monotonic()
        try:
            test()
            passed += 1
            print(f"ok {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Skipped as why:
            skipped += 1
            print(f"SKIPPED {name}: {why}", flush=True)
        except Exception as error:  # one broken test must not hide the others
            failed += 1
            print(f"FAILED {name}: {error}", flush=True)
            if not isinstance(error, Failure):
                traceback.print_exc()
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    # 77: ctest reports the whole program as skipped, never as passed.
    sys.exit(1 if failed or not passed + skipped else 77 if skipped else 0)
