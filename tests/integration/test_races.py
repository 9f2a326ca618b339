"""Goal: whenever `gkps run` is stopped, killed, or loses a daemon, it ends in time, with an exit code that says so, and leaves
no process, no listening port and no file behind.
Method: many tiny jobs, each disturbed at a random moment between its start and its natural end; then the process table, the
kernel's sockets and the folder of the summary are looked at.  The seed is printed; RACES_SEED repeats a run (as far as
the machine's timing does), RACES_ROUNDS sets the number of jobs."""
import concurrent.futures
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time

from cluster import BIN, environment, expect, Failure, main, processes_of, program, wait_until

SANITIZED = "asan" in os.path.abspath(BIN) or "ASAN" in os.environ
ROUNDS = int(os.environ.get("RACES_ROUNDS", 40 if SANITIZED else 200))
SEED = int(os.environ.get("RACES_SEED", random.SystemRandom().randrange(1 << 32)))
AT_ONCE = 2
BOUND_S = 60
OLD = '{"old": true}'

# What is done to a job, how often, and the exit codes that may follow (negative: the launcher died of the signal, which
# is right before it has children and after it has none).
DISTURBANCES = {
    "nothing": (2, {0}),
    "Ctrl-C": (5, {0, 130, -signal.SIGINT}),
    "two Ctrl-C": (3, {0, 130, -signal.SIGINT}),
    "SIGTERM": (4, {0, 143, -signal.SIGTERM}),
    "terminal closed": (1, {0, 143, -signal.SIGHUP}),
    "kill -9": (5, {0, -signal.SIGKILL}),
    "a daemon killed": (3, {0, 70}),
    "a worker killed, restarts": (2, {0}),
    "a server killed, restarts": (2, {0, 69}),
}


def daemons_of(job):
    """Process ids of a job's daemons by the names of their programs."""
    found = {"gkps-server": [], "gkps-worker": []}
    for pid in processes_of(job):
        try:
            name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            continue  # it has ended since
        found.get(name, []).append(pid)
    return found


def kill_one(job, rng, names):
    victims = [pid for name in names for pid in daemons_of(job)[name]]
    if victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(victims), signal.SIGKILL)


def disturb(kind, run, job, rng):
    if kind == "Ctrl-C" or kind == "two Ctrl-C":
        os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to the whole group
    if kind == "two Ctrl-C":
        time.sleep(rng.uniform(0, 0.02))  # the moment is the stimulus
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGINT)
    elif kind == "SIGTERM":
        run.terminate()
    elif kind == "terminal closed":
        os.killpg(run.pid, signal.SIGHUP)
    elif kind == "kill -9":
        run.kill()
    elif kind == "a daemon killed":
        kill_one(job, rng, ("gkps-server", "gkps-worker"))
    elif kind == "a worker killed, restarts":
        kill_one(job, rng, ("gkps-worker",))
    elif kind == "a server killed, restarts":
        kill_one(job, rng, ("gkps-server",))


def listening(ports):
    """Those of the ports on which somebody listens who is no living process: a port that was free again may be anybody's."""
    inodes = {}
    with open("/proc/net/tcp", encoding="ascii") as table:
        for line in list(table)[1:]:
            fields = line.split()
            port = int(fields[1].rpartition(":")[2], 16)
            if fields[3] == "0A" and port in ports:
                inodes[f"socket:[{fields[9]}]"] = port
    if inodes:
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    inodes.pop(os.readlink(f"/proc/{pid}/fd/{fd}"), None)
            except OSError:
                continue
    return set(inodes.values())


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def check_files(folder, before, code, steps):
    """At most the summary, whole; with code 0 it is there and right, with another the old one is as it was."""
    names = set(os.listdir(folder))
    expect(names <= {"summary.json"}, f"files are left: {names}")
    text = None
    if names:
        text = read(os.path.join(folder, "summary.json"))
    if code > 0:
        expect(text == before, f"a failed run left this summary:\n{text}")
    elif text == before:
        expect(code != 0, "no summary was written")
    else:
        summary = json.loads(text)
        expect(summary["steps"] == summary["version"] == steps and summary["ledger"]["balanced"], f"the summary:\n{text}")


def one_round(number, natural_s, logs):
    """(kind, exit code, seconds from the disturbance to the end)"""
    rng = random.Random(f"{SEED} {number}")
    kind = rng.choices(list(DISTURBANCES), [weight for weight, _ in DISTURBANCES.values()])[0]
    job = f"race-{SEED}-{number}-"
    steps = rng.randrange(1, 200)
    moment_s = rng.uniform(0, natural_s * 1.1)
    words = f"round {number}: {kind} after {moment_s * 1000:.1f} ms"
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "summary.json")
        before = OLD if rng.random() < 0.3 else None
        if before:
            with open(path, "w", encoding="utf-8") as file:
                file.write(before)
        args = ["--servers", rng.randrange(1, 3), "--workers", rng.randrange(1, 4), "--steps", steps, "--batch", 4, "--model",
                "softmax", "--job", job, "--summary", path, "--log-level", "info",
                "--restart", "always" if kind.endswith("restarts") else "never"]
        # Not a pipe: reading to its end would wait for the very processes that must not be left.
        log = os.path.join(logs, f"{number}.log")
        with open(log, "w", encoding="utf-8") as file:
            run = subprocess.Popen([program("gkps"), "run", *map(str, args)], stdin=subprocess.DEVNULL, stdout=file,
                                   stderr=file, env=environment(), start_new_session=True)
        try:
            time.sleep(moment_s)
            if run.poll() is None:
                disturb(kind, run, job, rng)
            start = time.monotonic()
            run.wait(BOUND_S)
            if run.returncode == -signal.SIGKILL:  # its children see the end of their link, and need a moment
                wait_until(lambda: not processes_of(job), "processes are left", BOUND_S)
            expect(not processes_of(job), f"processes are left: {daemons_of(job)}")
            took_s = time.monotonic() - start
            expect(run.returncode in DISTURBANCES[kind][1], f"exit code {run.returncode}")
            left = listening({int(port) for port in re.findall(r"listens on tcp://127\.0\.0\.1:(\d+)", read(log))})
            expect(not left, f"ports are left: {left}")
            check_files(folder, before, run.returncode, steps)
        except (Failure, subprocess.TimeoutExpired) as error:
            for pid in processes_of(job):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            run.wait()
            raise Failure(f"{words}, arguments {args}: {error}; it said:\n{read(log)}") from None
    return kind, run.returncode, took_s


def natural_duration():
    start = time.monotonic()
    run = subprocess.run([program("gkps"), "run", "--servers", "2", "--workers", "2", "--steps", "100", "--batch", "4", "--model",
                          "softmax", "--quiet"], timeout=BOUND_S, check=False, env=environment())
    expect(run.returncode == 0, f"an undisturbed run ended with {run.returncode}")
    return time.monotonic() - start


def test_races():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the children of a deaf process would be deaf, too
    natural_s = min(natural_duration() for _ in range(3))
    print(f"   seed {SEED}, {ROUNDS} rounds{' (sanitizers: fewer)' if SANITIZED else ''}, a run takes about "
          f"{natural_s * 1000:.0f} ms", flush=True)
    seen = {}
    slowest = 0
    failures = []
    with tempfile.TemporaryDirectory() as logs, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        rounds = [pool.submit(one_round, number, natural_s, logs) for number in range(ROUNDS)]
        for done in concurrent.futures.as_completed(rounds):
            try:
                kind, code, took_s = done.result()
            except Failure as error:
                failures.append(str(error))
                continue
            seen.setdefault(kind, {}).setdefault(code, 0)
            seen[kind][code] += 1
            slowest = max(slowest, took_s)
    for kind in DISTURBANCES:
        codes = ", ".join(f"{count} x {code}" for code, count in sorted(seen.get(kind, {}).items()))
        print(f"   {kind}: exit codes {codes}", flush=True)
    print(f"   slowest end {slowest:.2f} s", flush=True)
    expect(not failures, f"{len(failures)} of {ROUNDS} rounds, seed {SEED}:\n" + "\n".join(failures[:5]))


main(globals())
