#!/usr/bin/env python3
"""Goal: a cluster whose workers compute gradients and select on the CUDA tables trains the model of one that does not, bit
for bit, and a wish for a device that cannot be had is one line.

Method: `gkps run` with the real daemons, of which the worker is linked against the emulation; the model hashes tell, because
every selected set is in them.  With a state directory too, from which a worker that is killed brings back what lay on the
device.

usage: train.py BIN EMULATED_WORKER STUB_OR_DRIVERLESS_WORKER
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

JOB = ["--servers", "2", "--workers", "2", "--model", "fnn3", "--data", "digits", "--batch", "16", "--density", "0.01",
       "--seed", "5"]


def train(folder, name, backend, *options):
    summary = os.path.join(folder, name + ".json")
    run = subprocess.run([os.path.join(folder, "gkps"), "run", *JOB, *options, "--backend", backend, "--log-level", "info",
                          "--summary", summary], capture_output=True, text=True, timeout=120, check=False)
    if run.returncode != 0:
        sys.exit(f"{name}: code {run.returncode}\n{run.stdout}{run.stderr}")
    for words in ("cuda:0 emulated", "cuBLAS"):
        if (words in run.stdout + run.stderr) != backend.startswith("cuda"):
            sys.exit(f"{name}: the tables are not those of {backend}\n{run.stdout}{run.stderr}")
    with open(summary, encoding="utf-8") as file:
        return json.load(file)["model_hash"]


def expect(condition, words):
    if not condition:
        sys.exit(words)


def equal_models(folder):
    for compressor, steps in (("gaussk", "25"), ("topk", "4"), ("gaussk-paper", "4")):
        options = ("--compressor", compressor, "--steps", steps)
        hashes = {backend: train(folder, f"{compressor}-{backend}", backend, *options) for backend in ("cpu", "cuda")}
        expect(hashes["cpu"] == hashes["cuda"], f"{compressor}: {hashes}")
        print(f"{compressor}: {hashes['cuda']} on both")
        if compressor == "gaussk":
            script = os.path.join(folder, "kill.yaml")
            with open(script, "w", encoding="utf-8") as file:
                file.write("faults: [{at: {step: 9}, do: kill, who: worker 1}]\nexpect: {completes: true, restarts: 1}\n")
            kept = train(folder, "kept", "cuda:0", *options, "--state-dir", os.path.join(folder, "state"), "--faults", script)
            expect(kept == hashes["cpu"], f"with a state directory and a kill: {kept}, else {hashes['cpu']}")


def refused(worker, backend, code, words):
    run = subprocess.run([worker, "--backend", backend], capture_output=True, text=True, timeout=60, check=False)
    expect(run.returncode == code and words in run.stderr, f"--backend {backend}: code {run.returncode}: {run.stderr}")
    expect(len(run.stderr.strip().splitlines()) == 1, f"--backend {backend}: more than a line: {run.stderr}")


def main():
    programs, emulated, plain = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as folder:
        for name in ("gkps", "gkps-server"):
            shutil.copy(os.path.join(programs, name), os.path.join(folder, name))
        shutil.copy(emulated, os.path.join(folder, "gkps-worker"))
        equal_models(folder)
    refused(emulated, "cuda:1", 78, "no CUDA device 1: this machine has 1, counted from 0")
    refused(emulated, "cuda:x", 64, "expected auto, cpu, cuda or cuda:N")
    refused(emulated, "gpu", 64, "expected auto, cpu, cuda or cuda:N")
    refused(plain, "cuda:15", 78, "CUDA")


if __name__ == "__main__":
    main()
