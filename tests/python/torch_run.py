"""Goal: PyTorch scripts train as `gkps run -- python3 SCRIPT` says: the examples, optimizers on both sides, restarts, and the
mistakes that end a job, with one line each and no hang.
Method: real servers and processes; small models; the tests' scripts print what they have at the end.

Needs torch; any version from 1.13.  usage: torch_run.py BIN [test ...]"""
import json
import os
import re
import signal
import sys
import tempfile
import textwrap

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", ".."))
sys.path[:0] = [os.path.join(ROOT, "tests", "integration")]

import cluster
from cluster import Run, expect, main, processes_of, wait_until

EXAMPLES = os.path.join(ROOT, "examples")


def script_environment():
    env = cluster.environment(PYTHONPATH=os.path.join(ROOT, "worker", "python"), PYTHONDONTWRITEBYTECODE="1",
                              PYTHONUNBUFFERED="1", OMP_NUM_THREADS="1")
    env["GKPS_LIBRARY"] = os.environ.get("GKPS_TEST_LIBRARY") or os.path.join(cluster.BIN, "..", "lib", "libgkps.so.0")
    return env


def run(options, command, code=0):
    """(summary or None, all that was printed); `command`: a script of the examples with arguments, or text."""
    with tempfile.TemporaryDirectory() as folder:
        summary = os.path.join(folder, "summary.json")
        _, out, err = result = cluster.gkps("run", "--summary", summary, *options, "--", *as_command(command, folder),
                                            env=script_environment())
        expect(result[0] == code, f"gkps run ended with {result[0]}, not {code}:\n{out}\n{err}")
        if not os.path.exists(summary):
            return None, out + err
        with open(summary, encoding="utf-8") as file:
            return json.load(file), out + err


def as_command(command, folder):
    if isinstance(command, str):
        path = os.path.join(folder, "script.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(PRELUDE) + textwrap.dedent(command))
        command = [path]
    else:
        command = [os.path.join(EXAMPLES, command[0]), *command[1:]]
    return [sys.executable, *map(str, command)]


# A small task that each rank has its own batches of; digest() tells whether two ranks have the same parameters.
PRELUDE = """
    import hashlib, os, sys, time
    import torch
    from torch import nn
    import gkps, gkps.torch

    def network():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def loss_of(model, step, rank, size=16):
        generator = torch.Generator().manual_seed(1000 * rank + step)
        x = torch.randn(size, 16, generator=generator)
        return (model(x)[:, 0] - x[:, :4].sum(1).sin()).square().mean()

    def digest(model):
        return hashlib.sha256(b"".join(bytes(bytearray(p.detach().contiguous().view(-1).view(torch.uint8).tolist()))
                                       for p in model.parameters())).hexdigest()[:16]

    def train(model, optimizer, steps, **kwargs):
        for step in range(optimizer.start_step, steps):
            optimizer.zero_grad()
            loss = loss_of(model, step, optimizer.rank)
            loss.backward()
            optimizer.step(samples=16, loss=loss, **kwargs)
"""


def printed(out, word):
    """What the ranks have printed behind a word: {rank: text}."""
    return {int(rank): text for rank, text in re.findall(rf"^\[(\d+)\] {word} (.*)$", out, re.M)}


def all_the_same(out, word, workers):
    values = printed(out, word)
    expect(len(values) == workers and len(set(values.values())) == 1, f"{word} differs: {values}\n{out}")
    return values[0]


def test_mnist_example():
    summary, out = run(["--servers", 2, "--workers", 4, "--density", 0.02], ["mnist_torch.py", "--steps", 300])
    expect(summary["accuracy"] > 0.95, f"accuracy {summary['accuracy']}:\n{out}")
    expect((summary["steps"], summary["ledger"]["lost"]) == (300, 0), f"{summary}")
    expect("the servers run SGD (momentum, momentum 0.9)" in out, out)
    expect("torch" in json.dumps(summary), f"the summary does not say what computed the gradients: {summary}")


def test_charlm_example():
    letters = os.path.join(ROOT, "ARCHITECTURE.md")
    summary, out = run(["--servers", 1, "--workers", 2, "--density", 0.05],
                       ["charlm_torch.py", letters, "--steps", 60, "--width", 32, "--layers", 1, "--batch", 8, "--context", 32])
    expect("the servers run AdamW" in out, out)
    expect(1 < summary["test_loss"] < 3.2, f"test loss {summary['test_loss']}; at the start it is about 4.5")


def test_sparsifier_example():
    summary, out = run(["--servers", 2, "--workers", 2], ["sparsifier.py", "--steps", 150])
    expect(summary["accuracy"] > 0.85, f"accuracy {summary['accuracy']}:\n{out}")
    expect(0 < summary["selected"] <= 0.02 * 15010 * 2 * 150, f"{summary['selected']} entries")


def test_every_optimizer_is_that_of_torch():
    """Dense: the parameters are those of torch with the mean of the gradients, but for the rounding."""
    for inner, local in (("torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)", False),
                         ("torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)", False),
                         ("torch.optim.RMSprop(p, lr=0.01)", True)):
        _, out = run(["--servers", 2, "--workers", 2, "--compressor", "dense", "--density", 1], f"""
            model, reference = network(), network()
            model[0].bias.requires_grad_(False)
            reference[0].bias.requires_grad_(False)
            def make(p):
                return {inner}
            inner = make(reference.parameters())
            optimizer = gkps.torch.Optimizer(model, make(model.parameters()))
            rates = [torch.optim.lr_scheduler.StepLR(one, 10, 0.5) for one in (optimizer, inner)]
            for step in range(30):
                optimizer.zero_grad()
                inner.zero_grad()
                loss_of(model, step, optimizer.rank).backward()
                ((loss_of(reference, step, 0) + 3 * loss_of(reference, step, 1)) / 4).backward()
                optimizer.step(samples=8 + 16 * optimizer.rank)
                inner.step()
                for rate in rates:
                    rate.step()
            print("digest", digest(model))
            print("apart", max(float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), reference.parameters())))
        """)
        all_the_same(out, "digest", 2)
        expect(("runs in every worker" in out) == local, out)
        expect(float(printed(out, "apart")[0]) < 2e-4, f"{inner}: {printed(out, 'apart')} apart")


def test_local_steps_accumulation_and_leaving():
    _, out = run(["--servers", 2, "--workers", 3, "--density", 0.2], """
        model = network()
        optimizer = gkps.torch.Optimizer(model, torch.optim.AdamW(model.parameters(), lr=0.03), local_steps=4)
        first = float(loss_of(model, 999, 9, 512).detach())
        train(model, optimizer, 120)
        print("digest", digest(model), optimizer.version)
        print("losses", first, float(loss_of(model, 999, 9, 512).detach()))
    """)
    expect(all_the_same(out, "digest", 3).endswith(" 30"), out)
    first, last = map(float, printed(out, "losses")[0].split())
    expect(last < 0.4 * first, f"local steps do not learn: {first} to {last}")
    summary, out = run(["--servers", 2, "--workers", 3, "--density", 0.2], """
        model = network()
        optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.05))
        with optimizer:
            for step in range(10 * (optimizer.rank + 1)):  # uneven data
                for part in range(3):
                    (loss_of(model, 3 * step + part, optimizer.rank) / 3).backward()
                optimizer.step(samples=48)
                optimizer.zero_grad()
            print("version", optimizer.version)
    """)
    expect(printed(out, "version") == {0: "10", 1: "20", 2: "30"}, out)
    expect(summary["ledger"]["lost"] == 0, f"{summary['ledger']}")


def test_overflow_on_one_rank():
    summary, out = run(["--servers", 2, "--workers", 2, "--density", 0.2], """
        model = network()
        optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        for step in range(20):
            optimizer.zero_grad()
            loss_of(model, step, optimizer.rank).backward()
            overflow = optimizer.rank == 1 and step % 3 == 0
            if overflow:
                model[0].weight.grad[3, 3] = float("inf")
            optimizer.found_inf, optimizer.grad_scale = torch.tensor(float(overflow)), None  # as GradScaler does
            optimizer.step(samples=16)
        print("digest", digest(model))
        print("finite", all(bool(p.isfinite().all()) for p in model.parameters()))
    """)
    all_the_same(out, "digest", 2)
    expect(all_the_same(out, "finite", 2) == "True", out)
    expect(summary["steps"] == 20, f"{summary['steps']} steps")


LONG = """
    model = network()
    inner = {inner}
    optimizer = gkps.torch.Optimizer(model, inner)
    seen = optimizer.user.setdefault("seen", [])
    print("start", optimizer.start_step, optimizer.resumed, len(seen), flush=True)
    for step in range(optimizer.start_step, 150):
        optimizer.zero_grad()
        noise = torch.rand(()).item()  # of the generator that survives
        (loss_of(model, step, optimizer.rank) * (1 + 0.1 * noise)).backward()
        seen.append(step)
        optimizer.step(samples=16)
        time.sleep(0.005)
    print("digest", digest(model), len(seen), seen == list(range(150)))
"""


def train_and_kill(inner, kill):
    """The job, undisturbed or with a rank that is killed twice: what its ranks print at the end, and the summary."""
    with tempfile.TemporaryDirectory() as folder:
        summary, state = os.path.join(folder, "summary.json"), os.path.join(folder, "state")
        command = as_command(LONG.format(inner=inner), folder)
        running = Run(folder, "--servers", 2, "--workers", 2, "--density", 0.1, "--steps", 150, "--state-dir", state, "--summary",
                      summary, "--", *command, env=script_environment())
        with running:
            for mark in (30, 80) if kill else ():
                running.wait_steps(mark)
                os.kill(rank_process(folder, 1), signal.SIGKILL)
            code = running.wait()
            expect(code == 0, f"the run ended with {code}:\n{running.text()}")
        with open(summary, encoding="utf-8") as file:
            return running.text(), json.load(file)


def rank_process(folder, rank):
    """The Python process of a rank."""
    def look():
        for pid in processes_of(os.path.join(folder, "script.py")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    env = file.read().split(b"\0")
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    program = os.path.basename(file.read().split(b"\0")[0])
            except OSError:
                continue
            if f"GKPS_RANK={rank}".encode() in env and program.startswith(b"python"):
                return pid
        return None
    return wait_until(look, f"the process of rank {rank}")


def test_a_killed_rank_goes_on():
    for inner in ("torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)", "torch.optim.Adagrad(model.parameters(), lr=0.02)"):
        calm, calm_summary = train_and_kill(inner, kill=False)
        wild, summary = train_and_kill(inner, kill=True)
        expect(wild.count("[1] start") == 3 and len(re.findall(r"^\[1\] start [1-9]\d* True [1-9]\d*$", wild, re.M)) == 2, wild)
        expect(summary["ledger"]["lost"] == 0 and summary["residuals_lost"] == 0, f"{inner}: {summary}")
        expect(printed(wild, "digest") == printed(calm, "digest"), f"{inner}:\n{printed(calm, 'digest')}\n{printed(wild, 'digest')}")
        expect(all_the_same(wild, "digest", 2).endswith(" 150 True"), wild)
        expect(summary["model_hash"] == calm_summary["model_hash"], f"{inner}: another model after two kills")


def test_forked_loader_processes():
    """DataLoader forks after the worker was opened; its processes end without a word to anybody."""
    _, out = run(["--servers", 1, "--workers", 2, "--density", 0.2], """
        data = torch.utils.data.TensorDataset(torch.randn(64, 16))
        model = network()
        optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.01))
        sampler = torch.utils.data.DistributedSampler(data, optimizer.workers, optimizer.rank)
        loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler, num_workers=2)
        for epoch in range(2):
            for x, in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step(samples=len(x))
        child = os.fork()
        if child == 0:
            try:
                optimizer.step()
            except gkps.ForkedError as error:
                print("forked", error.exit_code, flush=True)
                os._exit(0)
            os._exit(1)
        print("child", os.waitpid(child, 0)[1])
        print("digest", digest(model), optimizer.version)
    """)
    expect(all_the_same(out, "digest", 2).endswith(" 8") and all_the_same(out, "child", 2) == "0", out)


def test_mistakes_end_the_job():
    for code, words, script in (
            (65, "learning rate", """
                model = network()
                optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
                optimizer.param_groups[0]["lr"] = 0.1 * (optimizer.rank + 1)
                train(model, optimizer, 10)
             """),
            (77, "", """
                model = nn.Linear(16, 10 + int(os.environ["GKPS_RANK"]))
                gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
             """),
            (64, "2.bias", """
                model = network()
                optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
                train(model, optimizer, 3)
                model[2].bias.data = torch.zeros(2)
                model[2].bias.grad = None
                optimizer.step()
             """),
            (65, "not finite", """
                model = network()
                optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
                train(model, optimizer, 3)
                model[0].weight.grad[0, 0] = float("nan")
                optimizer.step()
             """)):
        _, out = run(["--servers", 2, "--workers", 2, "--deadline", 100], script, code)
        expect(words in out, f"'{words}' is not said:\n{out}")


def test_no_state_for_a_local_optimizer():
    _, out = run(["--servers", 1, "--workers", 2, "--restart", "always"], """
        model = network()
        optimizer = gkps.torch.Optimizer(model, torch.optim.RMSprop(model.parameters()))
        if optimizer.rank == 1 and optimizer.start_step == 0:
            train(model, optimizer, 5)
            os.kill(os.getpid(), 9)
        train(model, optimizer, 10)
    """, 69)
    expect("rank 1 cannot have the parameters of version 5" in out, out)


def test_a_script_that_fails_is_missed():
    _, out = run(["--servers", 1, "--workers", 2], """
        model = network()
        optimizer = gkps.torch.Optimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        train(model, optimizer, 3)
        if optimizer.rank == 1:
            raise RuntimeError("of the script")
        train(model, optimizer, 10000)
    """, 1)
    expect("RuntimeError: of the script" in out, out)


if __name__ == "__main__":
    main(globals())
