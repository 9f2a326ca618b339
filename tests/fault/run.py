"""Fault scripts against real daemons: run.py BIN_DIR [NAME ...], each NAME a script in this folder; all of them without.
run.py BIN_DIR --seeds N NAME: one script with the seeds 1 to N, and the hash of each run.

A script says itself what must hold.  This runner adds what a script cannot see: that the false one fails with a line for
each expectation, that no process and no file is left behind, and the orders of start-in-every-order.  Prints
`N passed, N failed`."""
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = sys.argv[1]
DEADLINE_S = 380


class Failure(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Failure(what)


def processes_of(marker):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read()
        except OSError:
            continue
        if marker.encode() in command and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def run(path, *args, env_extra=None):
    """gkps run --faults in an empty folder: (code, output).  Nobody of it is left, nor any file but the state."""
    marker = f"fault-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory() as folder:
        state = os.path.join(folder, "state")
        args = [a.replace("STATE", state) for a in args]
        env = {k: v for k, v in os.environ.items() if not k.startswith("GKPS_")}
        env["TMPDIR"] = folder
        env.update(env_extra or {})
        done = subprocess.run([os.path.join(BIN, "gkps"), "run", "--faults", path, "--job", marker, *args], cwd=folder,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=DEADLINE_S, check=False, env=env)
        left = processes_of(marker)
        expect(not left, f"processes outlive the run: {left}\n{done.stdout}")
        files = [f for f in os.listdir(folder) if f != "state"]
        expect(not files, f"files outlive the run: {files}\n{done.stdout}")
    return done.returncode, done.stdout


def script(name):
    return os.path.join(HERE, name + ".yaml")


def text_of(name):
    with open(script(name), encoding="utf-8") as file:
        return file.read()


def plain(name, *args):
    code, output = run(script(name), *args)
    expect(code == 0, f"{name} ended with {code}:\n{output}")
    print(output.strip().splitlines()[-1])


def false_expectation():
    code, output = run(script("false-expectation"))
    expect(code == 70, f"code {code}, not 70:\n{output}")
    for line, words in ((6, "freeze: done 0 times of 1"), (9, "exit: the run ended with code 0"), (10, "restarts: 1"),
                        (11, "memory-mib: the largest"), (12, "says: no line")):
        found = re.findall(rf"^.*false-expectation\.yaml:{line}: {words}.*$", output, re.M)
        expect(len(found) == 1, f"'{words}' at line {line}: {len(found)} times in\n{output}")
    expect(":8: completes" not in output, f"what holds is complained about:\n{output}")


def start_in_every_order():
    text = text_of("start-in-every-order")
    daemons = ("server 0", "server 1", "worker 0", "worker 1")
    orders = list(itertools.permutations(daemons))
    for order in orders:
        begin = ", wait 100 ms, ".join(order)
        changed = re.sub(r"^start: .*$", f"start: [{begin}]", text, flags=re.M)
        expect(begin in changed, "the script has no line 'start:'")
        # The model without faults is compared once: in the first order.
        if order != orders[0]:
            changed = changed.replace("  same-hash: true\n", "")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(changed)
            file.flush()
            code, output = run(file.name)
        expect(code == 0, f"order {begin}: code {code}\n{output}")
    print(f"{len(orders)} orders")


# Scripts for daemons that keep state directories, and those that have more to be looked at.
WITH_STATE = ("full-disk", "kill-both-servers", "kill-everything", "kill-server", "kill-worker", "kill-worker-between-pushes",
              "restart-storm", "shard-without-directory", "worker-without-directory")
SPECIAL = {"false-expectation": false_expectation, "start-in-every-order": start_in_every_order}


def test(name):
    if name in SPECIAL:
        SPECIAL[name]()
    elif name in WITH_STATE:
        plain(name, "--state-dir", "STATE")
        if name == "kill-worker":
            plain(name)  # the directory that it then makes is gone: run() looks at TMPDIR
    else:
        plain(name)


def seeds(count, name):
    """The script with one seed after the other; what is drawn from them differs, the model does not."""
    hashes = set()
    for seed in range(1, count + 1):
        text, changes = re.subn(r"^seed: .*$", f"seed: {seed}", text_of(name), flags=re.M)
        expect(changes == 1, f"{name} has no line 'seed:'")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            code, output = run(file.name)
        expect(code == 0, f"{name} with seed {seed} ended with {code}:\n{output}")
        found = re.search(r"^ *model hash +(\w+)", output, re.M)
        restarts = re.search(r"^ *restarts +(\d+)", output, re.M)
        expect(found and restarts, f"no hash or no restarts in\n{output}")
        hashes.add(found.group(1))
        print(f"seed {seed}: {found.group(1)}, {restarts.group(1)} restarts", flush=True)
    expect(len(hashes) == 1, f"{len(hashes)} models: {hashes}")
    print(f"{count} passed, 0 failed")


def main():
    if sys.argv[2:3] == ["--seeds"]:
        try:
            seeds(int(sys.argv[3]), sys.argv[4])
        except (Failure, subprocess.TimeoutExpired) as error:
            sys.exit(f"FAILED {error}")
        return
    names = sys.argv[2:] or sorted(f[:-5] for f in os.listdir(HERE) if f.endswith(".yaml"))
    passed = failed = 0
    for name in names:
        start = time.monotonic()
        try:
            test(name)
            passed += 1
            print(f"ok {name} ({time.monotonic() - start:.1f} s)", flush=True)
        except (Failure, subprocess.TimeoutExpired) as error:
            failed += 1
            print(f"FAILED {name}: {error}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(0 if passed and not failed else 1)


main()
