"""Goal: with `--restart always` a run survives its workers' deaths and counts every push; a server that dies without a state
directory ends it in bounded time, and everybody says why; a peer that never answers is named when the deadline comes.
Method: kill -9 and SIGSTOP on daemons of real runs at steps that the progress lines tell; summary, exit codes and words."""
import json
import os
import random
import re
import signal
import tempfile
import time

import cluster
from cluster import BIN, Cluster, expect, main, processes_of, wait_until

SANITIZED = "asan" in os.path.abspath(BIN) or "ASAN" in os.environ
SEED = int(os.environ.get("RESTART_SEED", random.SystemRandom().randrange(1 << 32)))
BOUND_S = 120


class Run(cluster.Run):
    def __init__(self, name, *args):
        self.job = f"{name}-{os.getpid()}"
        super().__init__(self.job, "--job", self.job, *args)

    def wait(self):
        code = super().wait()
        expect(not processes_of(self.job), f"processes are left: {processes_of(self.job)}")
        return code


def test_workers_die_and_the_run_goes_on():
    rng = random.Random(SEED)
    steps = 400 if SANITIZED else 1000
    kills = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "summary.json")
        with Run("survivor", "--restart", "always", "--steps", steps, "--summary", path) as run:
            victims = rng.sample(range(4), 4) + [rng.randrange(4)]
            print(f"   seed {SEED}, ranks {victims} die", flush=True)
            for number, rank in enumerate(victims):
                run.wait_steps((number + 1) * steps // 10 + rng.randrange(steps // 20))
                first = run.kill(f"--rank={rank}")
                kills += 1
                if number % 2 == 0:  # its next life dies young, perhaps before it has joined
                    wait_until(lambda: run.daemon(f"--rank={rank}") != first, f"no other life of rank {rank}", BOUND_S)
                    run.kill(f"--rank={rank}")
                    kills += 1
            code = run.wait()
            expect(code == 0, f"exit code {code}:\n{run.text()}")
            text = run.text()
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
    for rank in set(victims):
        expect(re.search(rf"worker {rank} was killed by SIGKILL.*starts again in .*with an empty residual", text), f"rank {rank}:\n{text}")
    ledger = summary["ledger"]
    expect(summary["restarts"] == kills and re.search(rf"restarts +{kills} ", text), f"{kills} kills: {summary}")
    expect(summary["steps"] == summary["version"] == steps and f"step {steps}/{steps}" in text, f"steps: {summary}\n{text}")
    expect(ledger["pushes"] == 2 * 4 * steps, f"one push a rank, step and shard: {ledger}")
    expect(ledger["pushes"] == ledger["applied"] + ledger["lost"] and ledger["balanced"], f"{ledger}")
    expect(ledger["lost"] <= 2 * kills, f"a death loses one step at most: {ledger}")
    expect(summary["accuracy"] >= (0.93 if SANITIZED else 0.95), f"accuracy: {summary['accuracy']}")
    print(f"   {kills} kills, {ledger['lost']} of {ledger['pushes']} pushes lost, accuracy {summary['accuracy']:.4f}", flush=True)


def test_a_dead_server_is_a_lost_shard():
    for servers, victim, restart in ((2, 1, "always"), (1, 0, "always")):
        with Run(f"lost-{servers}", "--restart", restart, "--steps", 1000000, "--workers", 3, "--servers", servers) as run:
            run.wait_steps(1)
            run.kill(f"--shard={victim}")
            start = time.monotonic()
            code = run.wait()
            took_s = time.monotonic() - start
            text = run.text()
            expect(code == 69, f"exit code {code}:\n{text}")
            expect(took_s < 30, f"the run took {took_s:.1f} s to end:\n{text}")
            for rank in range(3):
                expect(len(re.findall(rf"worker {rank} ended with code 69: .*LOST_SHARD: shard {victim}", text)) == 1,
                       f"worker {rank} does not say why:\n{text}")
            expect(len(re.findall(rf"LOST_SHARD: server {victim} died", text)) == 1, f"the launcher does not say why:\n{text}")
            print(f"   the end of {servers} servers' job came after {took_s:.2f} s", flush=True)


def test_a_job_that_nobody_remembers_does_not_begin_again():
    with Run("swept", "--restart", "always", "--steps", 1000000, "--servers", 2, "--workers", 2) as run:
        run.wait_steps(1)
        for pid in [run.daemon(flag) for flag in ("--rank=0", "--rank=1", "--shard=0", "--shard=1")]:
            os.kill(pid, signal.SIGKILL)
        expect(run.wait() == 69 and "LOST_SHARD" in run.text(), run.text())
        expect(max(run.steps()) == run.steps()[-1], f"the job began again:\n{run.text()}")


def test_what_cannot_help_is_not_tried():
    with tempfile.TemporaryDirectory() as empty, Run("useless", "--restart", "always", "--data", f"mnist:{empty}") as run:
        expect(run.wait() == 65 and "starts again" not in run.text() and empty in run.text(), run.text())


def test_a_frozen_server_is_named_at_the_deadline():
    for restart in ("never", "always"):
        with Run(f"frozen-{restart}", "--restart", restart, "--deadline", 2, "--steps", 1000000) as run:
            run.wait_steps(1)
            frozen = run.daemon("--shard=1")
            os.kill(frozen, signal.SIGSTOP)
            wait_until(lambda: run.ended or re.search(r"(code 69|a peer is lost).*; the run ends", run.text()),
                       "the end of the run", BOUND_S)
            os.kill(frozen, signal.SIGCONT)  # else it has to be killed after a while
            code = run.wait()
            expect(code == 69, f"exit code {code}:\n{run.text()}")
            expect(re.search(r"worker \d ended with code 69: no answer from shard 1 .*for 2 s", run.text()), run.text())


def test_deadlines_of_the_start():
    with Cluster() as cluster:
        server = cluster.server(1, 2, 2, "--deadline", 1)
        expect(server.wait() == 69, server.text())
        words = server.find("death")["words"]
        expect("waiting for worker 1 of 2: missing rank 0" in words and "rank 1" in words and "1 s" in words, words)
        server = cluster.server(0, 1, 2)
        first = cluster.worker(0, 2, [server.wait_event("endpoint")["address"]], "--deadline", 1)
        expect(first.wait() == 69, first.text())
        words = first.find("death")["words"]
        expect("1 of 2 workers" in words and "--deadline" in words, words)


main(globals())
