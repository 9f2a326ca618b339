"""Goal: a cluster of real daemons trains, and the trained model is a function of the job alone.
Method: `gkps run` with several seeds, numbers of servers and operators; the model hashes tell."""
import os

from cluster import expect, main, train

SHORT = ("--workers", 3, "--steps", 40, "--batch", 16)


def test_same_seed_same_model_for_any_number_of_servers():
    hashes = {servers: train("--servers", servers, "--seed", 7, *SHORT)["model_hash"] for servers in (1, 2, 3)}
    again = train("--servers", 2, "--seed", 7, *SHORT)["model_hash"]
    other = train("--servers", 2, "--seed", 8, *SHORT)["model_hash"]
    expect(len(set(hashes.values())) == 1, f"the number of servers changes the model: {hashes}")
    expect(again == hashes[2], f"the same job twice: {again} and {hashes[2]}")
    expect(other != hashes[2], "another seed gives the same model")


def test_operators_and_optimizers():
    hashes = set()
    for compressor in ("dense", "topk", "gaussk", "gaussk-paper", "dgc", "randk"):
        hashes.add((train("--compressor", compressor, *SHORT)["model_hash"], compressor))
    by_name = {name: value for value, name in hashes}
    expect(by_name["topk"] == by_name["gaussk"], f"gaussk is not topk: {by_name}")
    expect(len(set(by_name.values())) == 5, f"operators that should differ do not: {by_name}")
    for optimizer in ("sgd", "nesterov", "adamw"):
        summary = train("--optimizer", optimizer, "--lr", 0.01, "--schedule", "cosine", "--warmup", 5, "--weight-decay", 1e-4, *SHORT)
        expect(summary["steps"] == 40, f"{optimizer}: {summary}")


def test_optimizer_none_leaves_the_parameters():
    initial = train("--optimizer", "none", "--steps", 1, "--workers", 2)["model_hash"]
    later = train("--optimizer", "none", "--steps", 5, "--workers", 2)["model_hash"]
    # The step count is part of the spec and of the init id, but not of the initial parameters.
    expect(initial == later, "optimizer none changed the parameters")


def test_summary():
    summary = train("--servers", 2, "--seed", 1, *SHORT)
    for key in ("accuracy", "loss", "steps", "steps_per_s", "samples_per_s", "model_hash", "bytes_pushed", "bytes_pulled",
                "bytes_dense"):
        expect(summary.get(key) is not None, f"the summary lacks {key}: {summary}")
    machine = summary["machine"]
    expect(machine["cores"] >= 1 and "BLAS" in machine["blas"] and "threads 1" in machine["blas"], f"machine: {machine}")
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        expect(machine["cpu"] and machine["cpu"] in file.read(), f"machine: {machine}")
    for key, value in (("model", "fnn3"), ("data", "digits"), ("compressor", "gaussk"), ("density", 0.01), ("seed", 1),
                       ("parameters", 55210)):
        expect(summary[key] == value, f"{key}: {summary[key]}")
    expect(set(summary["time"]) == {"compute", "select", "push", "wait", "pull"}, f"time split: {summary['time']}")
    d = 64 * 200 + 200 + 200 * 200 + 200 + 200 * 10 + 10
    k = d // 100
    expect(summary["bytes_dense"] == 3 * 40 * 2 * 4 * d, f"bytes_dense: {summary['bytes_dense']}")
    expect(summary["bytes_pushed"] == 3 * 40 * 8 * k, f"bytes_pushed: {summary['bytes_pushed']} for k = {k}")
    expect(summary["bytes_pulled"] >= 3 * 41 * 4 * d, f"bytes_pulled: {summary['bytes_pulled']}")


def test_digits_accuracy():
    if os.path.exists(os.path.join(os.path.dirname(__file__), "..", "..", "build")) and "asan" in os.path.abspath(__import__("cluster").BIN):
        seeds = (1,)
    else:
        seeds = (1, 2, 3)
    sparse = [train("--seed", seed)["accuracy"] for seed in seeds]
    dense = [train("--seed", seed, "--compressor", "dense")["accuracy"] for seed in seeds]
    print(f"   accuracy gaussk {sparse}, dense {dense}")
    expect(min(sparse) >= 0.95, f"gaussk: {sparse}")
    expect(sum(sparse) / len(seeds) >= sum(dense) / len(seeds) - 0.01, f"gaussk {sparse} against dense {dense}")


main(globals())
