"""Goal: no process outlives its job, a death is named, and daemons started by hand in any order train to the same model.
Method: real processes; kill -9, signals and start orders; the process table and the model hash tell."""
import json
import os
import shlex
import signal
import socket
import subprocess
import tempfile

from cluster import (BIN, Cluster, address_of, environment, expect, free_addresses, gkps, job_hash, main, processes_of,
                     program, train, wait_until)

TRAINING = ("--steps", 30, "--batch", 16, "--seed", 5)
LONG = ("--steps", 1000000)


def start_run(job, *args, **kwargs):
    return subprocess.Popen([program("gkps"), "run", "--job", job, *map(str, args)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(), **kwargs)


def children_of(run, job, count):
    """The daemons of a job, once all of them are there."""
    def look():
        expect(run.poll() is None, f"the run ended: {run.returncode}")
        pids = [p for p in processes_of(job) if os.path.basename(os.readlink(f"/proc/{p}/exe")) in ("gkps-server", "gkps-worker")]
        return pids if len(pids) == count else None
    return wait_until(look, f"{count} daemons of {job}")


def wait_gone(job):
    wait_until(lambda: not processes_of(job), f"processes of {job} are left", 30)


def wait_training(run):
    """Read the run's output until a progress line tells that steps are made."""
    for line in run.stdout:
        if "step " in line and "loss" in line:
            return
    raise AssertionError("the run ended before its first step")


def test_killed_launcher_leaves_nothing():
    job = f"killed-launcher-{os.getpid()}"
    run = start_run(job, *LONG)
    children_of(run, job, 6)
    wait_training(run)
    run.kill()
    run.wait()
    wait_gone(job)


def test_launcher_killed_at_once():
    job = f"killed-early-{os.getpid()}"
    run = start_run(job, *LONG)
    run.kill()
    run.wait()
    wait_gone(job)


def test_a_computation_that_never_returns():
    """OpenBLAS without memory asks for it for ever: the worker must end all the same when it is told to, or left alone."""
    library = os.path.join(BIN, "..", "tests", "integration", "libstuck_gemm.so")
    env = environment(LD_PRELOAD=library, ASAN_OPTIONS="verify_asan_link_order=0")
    with Cluster() as cluster:
        cases = [(lambda worker: worker.process.send_signal(signal.SIGTERM), 143),
                 (lambda worker: worker.line.shutdown(socket.SHUT_RDWR), 69)]
        workers = []
        for _ in cases:
            server = cluster.server()
            workers.append(cluster.start("gkps-worker", "--servers", address_of(server), "--rank", 0, env=env))
        for worker, (end, code) in zip(workers, cases):
            worker.wait_text("the matrix product has begun")
            end(worker)
        for worker, (end, code) in zip(workers, cases):
            expect(worker.wait(20) == code, f"exit code {worker.process.returncode}, expected {code}:\n{worker.text()}")
            expect("WORKER-ABANDONED" in worker.text(), worker.text())


def test_ctrl_c_ends_the_tree():
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        job = f"ctrl-c-{number}-{os.getpid()}"
        run = start_run(job, *LONG)
        children_of(run, job, 6)
        wait_training(run)
        run.send_signal(number)
        run.stdout.read()
        expect(run.wait(30) == code, f"exit code after signal {number}: {run.returncode}")
        wait_gone(job)


def test_dead_child_ends_the_run_with_its_name():
    for name in ("gkps-worker", "gkps-server"):
        job = f"dead-{name}-{os.getpid()}"
        run = start_run(job, *LONG)
        pids = children_of(run, job, 6)
        wait_training(run)
        victim = next(p for p in pids if os.path.basename(os.readlink(f"/proc/{p}/exe")) == name)
        os.kill(victim, signal.SIGKILL)
        out = run.stdout.read()
        expect(run.wait(60) not in (0, -signal.SIGKILL), f"exit code {run.returncode}")
        expect(name.removeprefix("gkps-") in out and "SIGKILL" in out, f"the death of a {name} is not named:\n{out}")
        wait_gone(job)


def by_hand(order, expected):
    """Two servers and two workers started in this order; one that is late comes when the others wait for it."""
    addresses = free_addresses(2)
    with Cluster() as cluster:
        started = {}
        for name in order:
            kind, number = name[0], int(name[1:] or 0)
            if kind == "s":
                started[name] = cluster.server(number, 2, 2, bind=addresses[number])
            elif kind == "w":
                started[name] = cluster.worker(number, 2, addresses, *TRAINING)
            else:  # "!": the workers must have said for whom they wait
                late = [d for d in started.values() if "worker" in d.process.args[0]]
                for daemon in late:
                    daemon.wait_text(r"waiting for (worker|server) \d of \d", 30)
        for daemon in started.values():
            expect(daemon.wait() == 0, f"{daemon.process.args[:2]}: {daemon.process.returncode}\n{daemon.text()}")
        found, version = job_hash([started["s0"], started["s1"]])
        expect(found == expected and version == 30, f"order {order}: hash {found} at {version}, expected {expected}")


def test_any_order_by_hand():
    expected = train("--servers", 2, "--workers", 2, *TRAINING)["model_hash"]
    by_hand(("s0", "s1", "w0", "w1"), expected)
    by_hand(("w1", "w0", "s1", "s0"), expected)
    by_hand(("w0", "s1", "w1", "!", "s0"), expected)
    by_hand(("s0", "w1", "s1", "!", "w0"), expected)


def test_closed_standard_descriptors():
    """The event loop must not be given descriptors 0 to 2."""
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        command = f"exec {shlex.quote(program('gkps'))} run --steps 5 --workers 2 --servers 1 {closed}"
        run = subprocess.run(["sh", "-c", command], env=environment(), timeout=120, check=False, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        expect(run.returncode == 0, f"gkps run {closed}: {run.returncode}")


def test_ranks_that_shard_0_assigns():
    expected = train("--servers", 2, "--workers", 3, *TRAINING)["model_hash"]
    with Cluster() as cluster:
        servers = [cluster.server(shard, 2, 3) for shard in (0, 1)]
        addresses = [address_of(server) for server in servers]
        workers = [cluster.worker("any", 3, addresses, *TRAINING) for _ in range(3)]
        for daemon in workers + servers:
            expect(daemon.wait() == 0, daemon.text())
        ranks = sorted(worker.find("summary")["rank"] for worker in workers)
        expect(ranks == [0, 1, 2], f"assigned ranks: {ranks}")
        expect(job_hash(servers)[0] == expected, "assigned ranks change the model")


def test_every_byte_is_counted():
    """What a worker says it moved is what its server saw, but for a few small messages at the end and the question itself."""
    with Cluster() as cluster:
        server = cluster.server()
        address = address_of(server)
        worker = cluster.worker(0, 1, [address], *TRAINING)
        expect(worker.wait() == 0, worker.text())
        code, out, err = gkps("status", "--json", "--server", address)
        expect(code == 0, f"{code}\n{out}\n{err}")
        seen = sum(json.loads(out)["servers"][0]["status"]["bytes"].values())
        summary = worker.find("summary")
        said = summary["bytes_pushed"] + summary["bytes_pulled"] + summary["bytes_headers"]
        expect(abs(seen - said) < 10000, f"the server saw {seen} bytes, the worker {said}")


def test_one_model_on_every_table():
    """--cpu changes no bit of what the arithmetic on vectors gives."""
    hashes = set()
    for cpu in ("auto", "reference"):
        with Cluster() as cluster:
            server = cluster.server(0, 1, 1, "--cpu", cpu)
            worker = cluster.worker(0, 1, [address_of(server)], "--cpu", cpu, *TRAINING)
            expect(worker.wait() == 0, worker.text() + server.text())
            if cpu == "reference":
                expect("cpu reference" in server.text() + worker.text(), server.text())
            hashes.add(job_hash([server])[0])
    expect(len(hashes) == 1, f"models: {hashes}")


def test_configuration_file_and_variables():
    expected = train("--servers", 1, "--workers", 1, *TRAINING)["model_hash"]
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("steps: 30\nbatch: 99\nseed: 5\n")
        server = cluster.server()
        worker = cluster.start("gkps-worker", "--servers", address_of(server), "--config", path,
                               env=environment(GKPS_BATCH=16, SLURM_PROCID=0))
        expect(worker.wait() == 0 and server.wait() == 0, worker.text())
        expect(job_hash([server])[0] == expected, "flags, variables and file together give another model")


main(globals())
