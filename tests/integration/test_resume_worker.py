"""Goal: a worker with a state directory that is killed at any step and started again trains on to the model of a run that
nobody disturbed, bit for bit; and a directory that is not its own ends it in one line.
Method: real daemons started by hand; kill -9 at random steps, which progress events tell; model hashes and words."""
import os
import random
import re
import resource
import signal
import subprocess
import tempfile

from cluster import BIN, Cluster, address_of, environment, expect, job_hash, main, program, train, wait_until

SANITIZED = "asan" in os.path.abspath(BIN) or "ASAN" in os.environ
SEED = int(os.environ.get("RESUME_SEED", random.SystemRandom().randrange(1 << 32)))
STEPS = 300
KILLS = 4 if SANITIZED else 8
BATCH = ("--steps", STEPS, "--batch", 16, "--seed", 3)


class Lives:
    """The lives of the workers of one job, each with a directory of its own."""

    def __init__(self, cluster, folder, workers, options):
        self.cluster = cluster
        self.folder = folder
        self.workers = workers
        self.options = options
        self.servers = [cluster.server(shard, 2, workers) for shard in (0, 1)]
        self.addresses = [address_of(server) for server in self.servers]
        self.living = [self.start(rank) for rank in range(workers)]
        self.lives = [1] * workers

    def directory(self, rank):
        return os.path.join(self.folder, f"worker-{rank}")

    def start(self, rank, *more):
        """Every step tells of itself to a launcher that may disturb."""
        return self.cluster.worker(rank, self.workers, self.addresses, "--state-dir", self.directory(rank), "--allow-faults",
                                   *self.options, *more)

    def step_of(self, rank):
        return max((e["step"] for e in list(self.living[rank].events) if e["event"] == "progress"), default=0)

    def wait_step(self, rank, step):
        def look():
            worker = self.living[rank]
            expect(worker.process.poll() is None, f"rank {rank} ended before step {step}:\n{worker.text()}")
            return self.step_of(rank) >= step
        wait_until(look, f"step {step} of rank {rank}")

    def kill(self, rank):
        worker = self.living[rank]
        os.kill(worker.process.pid, signal.SIGKILL)
        expect(worker.wait() == -signal.SIGKILL, worker.text())

    def again(self, rank, *more):
        self.living[rank] = self.start(rank, *more)
        self.lives[rank] += 1

    def end(self):
        for daemon in self.living + self.servers:
            expect(daemon.wait() == 0, f"{daemon.process.args[:2]}: {daemon.process.returncode}\n{daemon.text()}")
        return job_hash(self.servers)


def disturbed(rng, options, workers, *more):
    """The model hash of a run whose workers are killed again and again."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        job = Lives(cluster, folder, workers, options)
        step = 0
        for number in range(KILLS):
            rank = rng.randrange(workers)
            step += 1 + rng.randrange(STEPS // KILLS - 8)
            job.wait_step(rank, step)
            job.kill(rank)
            step = max(step, job.step_of(rank))
            job.again(rank, *more)
            if number % 3 == 2:  # and again, before or while it joins
                job.living[rank].wait_text("WORKER-STATE resuming rank")
                job.kill(rank)
                job.again(rank, *more)
        found, version = job.end()
        expect(version == STEPS, f"the job ends at version {version}")
        for rank in range(workers):
            text = job.living[rank].text()
            expect(job.lives[rank] == 1 or re.search(rf"resuming rank {rank} at step \d+ from ", text), text)
            expect("LOST" not in text, f"something was lost:\n{text}")
        last = job.start(0)
        expect(last.wait() == 0 and "had left" in last.text(), f"after the end: {last.process.returncode}\n{last.text()}")
        return found


def survive(*options):
    rng = random.Random(f"{SEED} {options}")
    options = (*BATCH, *options)
    print(f"   seed {SEED}", flush=True)
    expected = train("--servers", 2, "--workers", 2, *options)["model_hash"]
    found = disturbed(rng, options, 2)
    expect(found == expected, f"RESUME_SEED={SEED}: model {found}, undisturbed {expected}")


def test_momentum_gaussk():
    survive("--optimizer", "momentum", "--compressor", "gaussk")


def test_sgd_gaussk():
    survive("--optimizer", "sgd", "--compressor", "gaussk", "--density", 0.05)


def test_momentum_dense():
    survive("--optimizer", "momentum", "--compressor", "dense")


def test_sgd_dense():
    survive("--optimizer", "sgd", "--compressor", "dense", "--lr", 0.05)


def test_synced_steps():
    expected = train("--servers", 2, "--workers", 1, *BATCH)["model_hash"]
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        job = Lives(cluster, folder, 1, (*BATCH, "--state-sync"))
        job.wait_step(0, 40)
        job.kill(0)
        job.again(0)
        expect(job.end()[0] == expected, "another model")


def test_rank_that_was_assigned():
    """The slot knows the rank that shard 0 has given away."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        servers = [cluster.server(shard, 2, 2) for shard in (0, 1)]
        addresses = [address_of(server) for server in servers]

        def start(name):
            return cluster.worker("any", 2, addresses, "--state-dir", os.path.join(folder, name), "--allow-faults", *BATCH)

        workers = [start("a"), start("b")]
        wait_until(lambda: len([e for e in list(workers[1].events) if e["event"] == "progress"]) > 20, "twenty steps")
        os.kill(workers[1].process.pid, signal.SIGKILL)
        workers[1].wait()
        workers[1] = start("b")
        for daemon in workers + servers:
            expect(daemon.wait() == 0, daemon.text())
        expect(sorted(w.find("summary")["rank"] for w in workers) == [0, 1], "ranks")
        expect(re.search(r"resuming rank \d at step \d+", workers[1].text()), workers[1].text())
        expect("LOST" not in workers[1].text(), workers[1].text())
        expected = train("--servers", 2, "--workers", 2, *BATCH)["model_hash"]
        expect(job_hash(servers)[0] == expected, "another model")


def refused(worker, code, pattern):
    expect(worker.wait() == code, f"exit code {worker.process.returncode}, expected {code}:\n{worker.text()}")
    words = worker.find("death")["words"]
    expect(re.search(pattern, words), f"'{words}' does not say {pattern}")


def test_what_is_not_its_own():
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        job = Lives(cluster, folder, 2, (*BATCH[2:], "--steps", 1000000))
        job.wait_step(0, 5)
        directory = job.directory(0)
        refused(job.start(0), 75, rf"{directory} is in use by process {job.living[0].process.pid}")
        job.kill(0)
        refused(job.start(0, "--seed", 4), 78, rf"{directory}/slot is of another job spec")
        refused(job.start(0, "--job", "other"), 78, "is of job 'gkps', this is job 'other'")
        refused(job.start(0, "--model", "softmax"), 78, "is of another model")
        refused(cluster.worker(1, 2, job.addresses, "--state-dir", directory, *job.options), 78,
                "is of rank 0, this is rank 1")
        addresses = [address_of(cluster.server(shard, 2, 2)) for shard in (0, 1)]
        other = [cluster.worker(rank, 2, addresses, "--state-dir", os.path.join(folder, f"other-{rank}"), *job.options)
                 for rank in (0, 1)]
        other[1].wait_text("WORKER-JOINED")
        os.kill(other[0].process.pid, signal.SIGKILL)
        other[0].wait()
        refused(cluster.worker(0, 2, addresses, "--state-dir", directory, "--deadline", 2, *job.options), 77,
                "another run of job")
        job.again(0)
        job.wait_step(0, job.step_of(0) + 5)


def test_had_left_in_another_run():
    """The directory of a finished run, in a job of the same name that is not done: refused, not "has left"."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        other = os.path.join(folder, "other")
        os.mkdir(other)
        done = Lives(cluster, other, 2, BATCH)
        done.end()
        job = Lives(cluster, folder, 2, BATCH)
        job.wait_step(1, 5)
        job.kill(1)
        worker = cluster.worker(1, 2, job.addresses, "--state-dir", done.directory(1), "--deadline", 6, *BATCH)
        refused(worker, 77, rf"WRONG_JOB.*another run of job 'gkps'.*rank 1 had left at step {STEPS}: remove it")
        expect("WORKER-LEAVE-UNHEARD" not in worker.text(), worker.text())
        job.again(1)
        expect(job.end()[1] == STEPS, "the job does not end")


def test_damage_is_a_loss():
    """A byte of the residual is another one: the run goes on, says so, and counts what is lost."""
    with tempfile.TemporaryDirectory() as folder, Cluster() as cluster:
        job = Lives(cluster, folder, 2, BATCH)
        job.wait_step(1, 20)
        job.kill(1)
        path = os.path.join(job.directory(1), "slot")
        with open(path, "r+b") as file:
            size = os.path.getsize(path)
            for at in range(size // 2, size, 4096):  # both residuals lie in the second half
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
        job.again(1)
        job.end()
        text = job.living[1].text()
        expect(re.search(r"WORKER-STATE-DAMAGED .*/slot: .* damaged.*are lost", text), text)


def test_no_room():
    """A limit on the size of files stands for a disk that is full."""
    with tempfile.TemporaryDirectory() as folder:
        directory = os.path.join(folder, "worker")
        run = subprocess.run([program("gkps-worker"), "--state-dir", directory], capture_output=True, text=True, timeout=60,
                             check=False, env=environment(), stdin=subprocess.DEVNULL,
                             preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
        expect(run.returncode == 75, f"{run.returncode}: {run.stderr}")
        expect(re.search(rf"MiB are needed: {directory}/slot: cannot reserve its room", run.stderr), run.stderr)
        expect(os.listdir(directory) == ["LOCK"], f"{os.listdir(directory)}")


main(globals())
