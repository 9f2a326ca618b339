#!/usr/bin/env python3
"""Time to accuracy with DDP and with gkps, on boxes (network namespaces) joined by slow links.

Every box has one rank; with gkps each also has one server, as on a cluster without machines to spare.  All methods get
the same model, data, batches and momentum, and the learning rate of the grid with which they need the fewest steps
(one seed, links not limited: the rate of the links does not change what is learnt).  Then each is measured with several seeds.
tests/compare/run.sh installs what is needed, builds and starts this."""
import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from links import Network

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
METHODS = ("ddp", "ddp-fp16", "ddp-powersgd", "gkps-dense", "gkps-gaussk")
PORT = 5600
OPTIONS_OF_RESULTS = ("data", "target", "rate", "latency", "hidden", "boxes", "batch", "tuning_seed", "steps", "every", "density",
                      "powersgd_rank", "python")


class Failed(Exception):
    """A run that did not come to its end, with what it wrote."""


class Stuck(Failed):
    """One that did not end at all."""


class Run:
    """One training: ranks, and servers where the method has them."""

    def __init__(self, network, args, method, **settings):
        self.network, self.args, self.method = network, args, method
        self.settings = settings
        self.files, self.ranks, self.servers = [], [], []

    def _start(self, box, command, **variables):
        file = tempfile.TemporaryFile()
        process = subprocess.Popen(self.network.command(box, command), stdin=subprocess.DEVNULL, stdout=file,
                                   stderr=subprocess.STDOUT, start_new_session=True, env={**self._environment(), **variables})
        self.files.append((process, file))
        return process

    def _environment(self):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GKPS_")}
        return {**kept, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.path.join(ROOT, "worker", "python"),
                "GKPS_LIBRARY": os.path.join(self.args.build, "lib", "libgkps.so")}

    def _start_all(self):
        n, job = len(self.network.boxes), f"compare-{os.getpid()}"
        servers = ",".join(f"tcp://{address}:{PORT}" for address in self.network.addresses)
        if self.method.startswith("gkps-"):
            for i, address in enumerate(self.network.addresses):
                self.servers.append(self._start(i, [
                    os.path.join(self.args.build, "bin", "gkps-server"), "--job", job, "--shard", str(i), "--servers", str(n),
                    "--workers", str(n), "--bind", f"tcp://{address}:{PORT}", "--insecure", "--log-level", "warn"]))
        command = [sys.executable, os.path.join(HERE, "train.py"), "--method", self.method]
        for key, value in self.settings.items():
            command += [f"--{key.replace('_', '-')}", str(value)]
        for i in range(n):
            self.ranks.append(self._start(
                i, command, RANK=str(i), WORLD_SIZE=str(n), MASTER_ADDR=self.network.addresses[0], MASTER_PORT="29500",
                GLOO_SOCKET_IFNAME="eth0", GKPS_SERVERS=servers, GKPS_RANK=str(i), GKPS_WORKERS=str(n), GKPS_JOB=job))

    def _output(self, process):
        file = next(file for owner, file in self.files if owner is process)
        # The process shares the file's offset, which must stay where it is.
        return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

    def _ends(self):
        """The last line of each rank that has one."""
        ends = []
        for process in self.ranks:
            lines = [line for line in self._output(process).splitlines() if line.startswith('{"rank"')]
            ends += [json.loads(line) for line in lines]
        return ends

    def _wait(self):
        """For the ranks.  One that has told its result and does not end (gloo may spin when its peers are gone) is left to
        run()."""
        deadline, told = time.monotonic() + self.args.patience, False
        while any(process.poll() is None for process in self.ranks):
            codes = [process.poll() for process in [*self.ranks, *self.servers]]
            if any(codes) and not told:
                raise Failed(f"{self.method}: a process ended with code {next(code for code in codes if code)}\n{self._tails()}")
            if not told and len(self._ends()) == len(self.ranks):
                deadline, told = min(deadline, time.monotonic() + 10), True
            if time.monotonic() > deadline:
                if told:
                    return
                raise Stuck(f"{self.method}: not done in {self.args.patience:g} s\n{self._tails()}")
            time.sleep(0.1)
        if len(self._ends()) != len(self.ranks):
            raise Failed(f"{self.method}: a rank ended without a result\n{self._tails()}")

    def _tails(self):
        return "\n".join("\n".join(self._output(process).splitlines()[-40:]) for process, _ in self.files)

    def run(self):
        try:
            self._start_all()
            self._wait()
            return self._result()
        finally:
            for process, file in self.files:
                if process.poll() is None:
                    try:
                        os.killpg(process.pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
                    process.wait()
                file.close()

    def _result(self):
        ends = sorted(self._ends(), key=lambda end: end["rank"])
        steps = ends[0]["steps"]
        return {"method": self.method, "lr": self.settings["lr"], "seed": self.settings["seed"], "steps": steps,
                "seconds": max(end["seconds"] for end in ends), "accuracy": ends[0]["accuracy"], "reached": ends[0]["reached"],
                "step_s": max(end["seconds"] for end in ends) / steps,
                "sent": [end["sent"] / steps for end in ends], "received": [end["received"] / steps for end in ends],
                "torch": ends[0]["torch"], "parameters": ends[0]["parameters"]}


class Comparison:
    def __init__(self, network, args):
        self.network, self.args = network, args
        # What must be the same in a file that is gone on with.
        options = {key: value for key, value in vars(args).items() if key in OPTIONS_OF_RESULTS}
        self.results = {"options": options, "tuning": [], "measured": [], "links": {}}
        if args.file and os.path.exists(args.file):
            with open(args.file, encoding="utf-8") as file:
                self.results = json.load(file)
            other = [key for key, value in self.results["options"].items() if value != options[key]]
            if other:
                raise Failed(f"{args.file} has results with another {other[0].replace('_', '-')}: {self.results['options'][other[0]]}")

    def _save(self):
        if self.args.file:
            with open(self.args.file + ".new", "w", encoding="utf-8") as file:
                json.dump(self.results, file, indent=1)
            os.replace(self.args.file + ".new", self.args.file)

    def train(self, method, **changes):
        args = self.args
        settings = {"data": args.data, "hidden": args.hidden, "batch": args.batch, "steps": args.steps, "every": args.every,
                    "target": args.target, "density": args.density, "powersgd_rank": args.powersgd_rank, **changes}
        try:
            return Run(self.network, args, method, **settings).run()
        except Stuck as error:
            print(f"{error}\nonce more:", flush=True)
            return Run(self.network, args, method, **settings).run()

    def _known(self, part, **what):
        return next((r for r in self.results[part] if all(r[key] == value for key, value in what.items())), None)

    def tune(self, method):
        """The learning rate that needs the fewest steps; None when none of them gets there."""
        best = None
        for lr in self.args.rates:
            result = self._known("tuning", method=method, lr=lr)
            if result is None:
                # More steps than the best so far has needed cannot make it the best.
                limit = best["steps"] if best else self.args.steps
                result = self.train(method, lr=lr, seed=self.args.tuning_seed, steps=limit)
                self.results["tuning"].append(result)
                self._save()
            said = f"{result['steps']} steps" if result["reached"] else f"not in {result['steps']} steps ({result['accuracy']:.4f})"
            print(f"  {method:14} rate {lr:<6g} {said}", flush=True)
            if result["reached"] and (best is None or result["steps"] < best["steps"]):
                best = result
        return best["lr"] if best else None

    def measure(self, method, lr, seed):
        result = self._known("measured", method=method, lr=lr, seed=seed)
        if result is None:
            dropped = self.network.dropped()
            result = self.train(method, lr=lr, seed=seed)
            result["dropped"] = self.network.dropped() - dropped
            result["load"] = os.getloadavg()[0]
            self.results["measured"].append(result)
            self._save()
        print(f"  {method:14} seed {seed}: {result['steps']} steps, {1e3 * result['step_s']:.0f} ms a step, "
              f"{result['seconds']:.1f} s, accuracy {result['accuracy']:.4f}, load {result['load']:.1f}", flush=True)

    def floor(self):
        """What a step costs when nobody exchanges anything."""
        if "alone" not in self.results:
            result = self.train("alone", lr=self.args.rates[0], seed=1, steps=4 * self.args.every, target=2)
            self.results["alone"] = result["step_s"]
            self._save()
        return self.results["alone"]

    def run(self):
        args = self.args
        self.network.limit(None, args.latency)
        print(f"learning rates, seed {args.tuning_seed}, links not limited", flush=True)
        rates = {method: self.tune(method) for method in args.methods}
        if args.tune_only:
            return
        self.network.limit(args.rate, args.latency)
        throughput = self.network.throughput(sys.executable)
        self.results["links"] = {"rate": args.rate, "latency": args.latency, "bytes_per_s": throughput}
        print(f"one TCP connection over a link of {args.rate}: {throughput / 1e6:.0f} MB/s", flush=True)
        floor = self.floor()
        print(f"a step without any exchange: {1e3 * floor:.0f} ms", flush=True)
        for seed in args.seeds:
            for method in args.methods:
                if rates[method] is not None:
                    self.measure(method, rates[method], seed)
        print(table(self.results, args))


def span(values, form):
    low, high = min(values), max(values)
    middle = form.format(statistics.mean(values))
    return middle if form.format(low) == form.format(high) else f"{middle} ({form.format(low)} to {form.format(high)})"


def table(results, args):
    lines = ["", "| method | learning rate | steps | time to accuracy, s | step, ms | bytes of a box in a step, MB: sent, received | these at full speed, ms |",
             "|---|---|---|---|---|---|---|"]
    speed = results["links"]["bytes_per_s"]
    for method in args.methods:
        runs = [r for r in results["measured"] if r["method"] == method and r["seed"] in args.seeds]
        if not runs or not all(r["reached"] for r in runs):
            words = f"{sum(not r['reached'] for r in runs)} of {len(runs)} seeds did not reach it" if runs else "no rate of the grid reached it"
            lines.append(f"| {method} | | | {words} | | | |")
            continue
        sent, received = (statistics.mean(max(r[way]) for r in runs) for way in ("sent", "received"))
        lines.append(f"| {method} | {runs[0]['lr']:g} | {span([r['steps'] for r in runs], '{:.0f}')} | "
                     f"{span([r['seconds'] for r in runs], '{:.1f}')} | {span([1e3 * r['step_s'] for r in runs], '{:.0f}')} | "
                     f"{sent / 1e6:.2f}, {received / 1e6:.2f} | {1e3 * max(sent, received) / speed:.0f} |")
    first = next(iter(results["measured"]), None)
    if first:
        lines += ["", f"{first['parameters']} parameters, {len(first['sent'])} boxes x {args.batch} images, accuracy {args.target}, seeds "
                  f"{', '.join(map(str, args.seeds))}: mean (least to most); bytes of the busiest box, headers of all layers included.",
                  f"Links of {args.rate}, {speed / 1e6:.0f} MB/s by one TCP connection; a step without any exchange "
                  f"{1e3 * results['alone']:.0f} ms; density {args.density:g}, PowerSGD rank {args.powersgd_rank}; torch {first['torch']}, "
                  f"Python {platform.python_version()}, {os.cpu_count()} cores for all boxes, "
                  f"load {span([r['load'] for r in results['measured']], '{:.1f}')}, {sum(r['dropped'] for r in results['measured'])} packets dropped."]
    return "\n".join(lines)


def numbers(kind):
    return lambda text: [kind(item) for item in text.split(",")]


def options():
    parser = argparse.ArgumentParser(description=__doc__, prog="tests/compare/run.sh",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.path.join(ROOT, "worker", "data"),
                        help="folder with IDX files of images and labels; default: the digits of 8x8 points in the source tree")
    parser.add_argument("--methods", type=numbers(str), default=list(METHODS), help="default: all of " + ",".join(METHODS))
    parser.add_argument("--target", type=float, default=0.95, help="accuracy on the test images (default: %(default)s)")
    parser.add_argument("--rate", default="1gbit", help="of each link and direction, as tc has it (default: %(default)s)")
    parser.add_argument("--latency", default="20ms", help="longest wait in a link's queue; what comes then is dropped (default: %(default)s)")
    parser.add_argument("--hidden", default="2048,1024", help="widths of the hidden layers (default: %(default)s)")
    parser.add_argument("--boxes", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=32, help="images of a rank in a step (default: %(default)s)")
    parser.add_argument("--rates", type=numbers(float), default=[0.1, 0.05, 0.2, 0.02], help="learning rates (default: 0.1,0.05,0.2,0.02)")
    parser.add_argument("--seeds", type=numbers(int), default=[1, 2, 3], help="default: 1,2,3")
    parser.add_argument("--tuning-seed", type=int, default=11, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=600, help="at most (default: %(default)s)")
    parser.add_argument("--every", type=int, default=10, help="steps between evaluations (default: %(default)s)")
    parser.add_argument("--density", type=float, default=0.01, help="of gkps-gaussk (default: %(default)s)")
    parser.add_argument("--powersgd-rank", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--patience", type=float, default=300, help="seconds for one training (default: %(default)s)")
    parser.add_argument("--file", help="keep results there as JSON, and do not repeat what is there already")
    parser.add_argument("--tune-only", action="store_true", help="end after the learning rates")
    parser.add_argument("--python", default="/usr/bin/python3", help="with the torch to use (--python=PATH; default: %(default)s)")
    parser.add_argument("--build", help="folder of a build (--build=DIR; default: build/release, which is built)")
    parser.add_argument("--name", default=f"gkcmp{os.getpid()}", help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.methods) - set(METHODS)
    if unknown:
        parser.error(f"unknown method '{unknown.pop()}': expected some of {', '.join(METHODS)}")
    args.build = os.path.abspath(args.build or os.path.join(ROOT, "build", "release"))
    args.data = os.path.abspath(args.data)
    return args


def main():
    args = options()
    # Both ways out go through the `finally` of runs and network.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, frame: sys.exit(128 + got))
    try:
        with Network(args.name, args.boxes) as network:
            Comparison(network, args).run()
    except KeyboardInterrupt:
        return 130
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
