"""Goal: a job with a state directory goes on where it was, whatever stopped it, and ends with the model of an undisturbed
run; its folder cannot be mixed up; the tools read, check and export what is in it.
Method: real runs that are interrupted (Ctrl-C, kill -9 of the launcher and of daemons) at steps that the progress lines
tell, and resumed by the same command; damaged copies for inspect; the exported files are parsed here, independently (with
numpy, too, where Python has it), and hashed as docs/state.md says."""
import json
import os
import random
import re
import shutil
import signal
import struct
import tempfile
import zipfile

import cluster
from cluster import expect, gkps, main, program

STEPS = 300
OPTIONS = ["--steps", STEPS, "--workers", 2]


class Run(cluster.Run):
    def __init__(self, folder, *args):
        super().__init__(folder, "--state-dir", folder, *args)


def summary_of(*args):
    code, out, err = gkps("run", "--quiet", "--summary", "-", *args)
    expect(code == 0, f"gkps run {args}: {code}\n{out}{err}")
    return json.loads(out)


def finished_job(folder, *args):
    return summary_of("--state-dir", folder, *OPTIONS, *args)


def test_interrupted_and_resumed():
    steps = 5 * STEPS  # long enough for every kill to meet a run that goes on
    options = ["--steps", steps, "--workers", 2]
    whole = summary_of(*options)
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "job")
        with Run(folder, *options) as run:
            run.wait_steps(steps // 6)
            run.process.send_signal(signal.SIGINT)
            code = run.wait()
            expect(code == 130, f"Ctrl-C: {code}\n{run.text()}")
        with Run(folder) as run:  # the folder alone is enough
            run.wait_steps(steps // 3)
            expect("goes on at version" in run.text(), run.text())
            run.process.kill()
            run.wait()
        with Run(folder, "--steps", steps) as run:  # what agrees may be said again
            for flag in ("--shard=1", "--rank=0", "--shard=0"):
                run.wait_steps(max(run.steps(), default=0) + steps // 10)
                run.kill(flag)
            code = run.wait()
            text = run.text()
            expect(code == 0, f"resumed: {code}\n{text}")
        expect(f"model hash        {whole['model_hash']}" in text, f"not the hash {whole['model_hash']}:\n{text}")
        expect(len(re.findall("starts again in .* from its state directory", text)) == 3, text)
        expect("0 lost" in text, text)
        code, out, err = gkps("run", "--state-dir", folder, "--summary", os.path.join(top, "again.json"))
        expect(code == 0 and "is finished" in out and whole["model_hash"] in out, f"{code}\n{out}{err}")
        with open(os.path.join(top, "again.json"), encoding="utf-8") as file:
            again = json.load(file)
        expect(again["model_hash"] == whole["model_hash"] and again["version"] == steps and again["ledger"] == whole["ledger"]
               and again["samples"] is None, f"{again}")


def listing(folder):
    return sorted((os.path.join(top, name), os.path.getsize(os.path.join(top, name)))
                  for top, _, names in os.walk(folder) for name in names)


def test_other_jobs_are_refused():
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "job")
        finished_job(folder, "--job", "one")
        before = listing(folder)
        for args, words in [(["--model", "softmax"], "--model fnn3, not softmax"), (["--seed", 2], "--seed 1, not 2"),
                            (["--workers", 3], "--workers 2, not 3"), (["--servers", 1], "--servers 2, not 1"),
                            (["--job", "two"], "--job one, not two"), (["--lr", "0.2"], "--lr 0.1, not 0.2"),
                            (["--steps", STEPS + 1], "--steps")]:
            code, out, err = gkps("run", "--state-dir", folder, *args)
            expect(code == 78 and words in err and err.count("\n") == 1 and not out, f"{args}: {code}\n{out}{err}")
        expect(gkps("run", "--state-dir", folder, "--lr", "0.10", "--quiet")[0] == 0, "the same number, written otherwise")
        # Without the options the shards still know whose they are.
        os.remove(os.path.join(folder, "job.json"))
        code, out, err = gkps("run", "--state-dir", folder, "--job", "two", *OPTIONS)
        expect(code == 78 and "'one'" in err and "'two'" in err, f"{code}\n{out}{err}")
        shutil.rmtree(os.path.join(folder, "server-1"))
        code, out, err = gkps("run", "--state-dir", folder, "--job", "one", *OPTIONS)
        expect(code == 69 and "LOST_SHARD" in err and "server-1" in err, f"{code}\n{out}{err}")
        expect([b for b in before if "server-0" in b[0]] == [b for b in listing(folder) if "server-0" in b[0]], "touched")
        for args in (["--fresh"], ["--sync", "never"], ["--keep-versions", 3], ["--state-dir", ""]):
            code, out, err = gkps("run", *args)
            expect(code == 64 and args[0] in err, f"{args}: {code}\n{err}")


def test_folders_of_two_runs_are_refused():
    with tempfile.TemporaryDirectory() as top:
        one, two = os.path.join(top, "one"), os.path.join(top, "two")
        for folder in (one, two):
            finished_job(folder, "--job", "x")
        for name, first in (("server-0", "server-0"), ("server-1", "server-0"), ("worker-1", "server-0")):
            mixed = os.path.join(top, "mixed")
            shutil.copytree(one, mixed)
            shutil.rmtree(os.path.join(mixed, name))
            shutil.copytree(os.path.join(two, name), os.path.join(mixed, name))
            other = "server-1" if name == first else name
            code, out, err = gkps("run", "--state-dir", mixed)
            expect(code == 78 and f"{first} and " in err and f"{other} are of two runs of the job 'x'" in err
                   and err.count("\n") == 1 and not out, f"{name}: {code}\n{out}{err}")
            shutil.rmtree(mixed)
        # Shards that changed places are all there.
        shutil.copytree(one, mixed)
        for old, new in (("server-0", "x"), ("server-1", "server-0"), ("x", "server-1")):
            os.rename(os.path.join(mixed, old), os.path.join(mixed, new))
        code, out, err = gkps("run", "--state-dir", mixed)
        expect(code == 78 and "server-0 is shard 1 of this job: rename" in err and "--fresh" not in err, f"{code}\n{out}{err}")
        shutil.rmtree(mixed)
        # A folder that is named twice is not in use by anybody else.
        shard = os.path.join(two, "server-0")
        code, out, err = gkps("rewind", "--to", STEPS - 10, shard, shard, os.path.join(two, "server-1"))
        expect(code == 78 and "are the same folder" in err, f"{code}\n{out}{err}")
        # A rewind that was interrupted.
        code, out, err = gkps("rewind", "--to", STEPS - 10, two)
        expect(code == 0, f"{code}\n{out}{err}")
        shutil.copytree(one, mixed)
        expect(gkps("rewind", "--to", STEPS - 10, mixed)[0] == 0, "rewind")
        shutil.rmtree(os.path.join(mixed, "server-0"))
        shutil.copytree(os.path.join(one, "server-0"), os.path.join(mixed, "server-0"))
        code, out, err = gkps("run", "--state-dir", mixed)
        expect(code == 78 and "a rewind was interrupted" in err and not out, f"{code}\n{out}{err}")
        # Workers of the old epoch belong to a job that was wound back.
        code, out, err = gkps("run", "--state-dir", two, "--quiet")
        expect(code == 0, f"{code}\n{out}{err}")


def test_a_missing_job_file_is_written_anew():
    for servers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            whole = finished_job(folder, "--servers", servers)
            path = os.path.join(folder, f"server-{servers - 1}", "JOB")
            os.remove(path)
            code, out, err = gkps("inspect", folder)
            expect(code == 65 and "JOB is missing" in out and "writes it anew" in out, f"{code}\n{out}{err}")
            code, out, err = gkps("run", "--state-dir", folder, "--quiet", "--summary", "-")
            expect(code == 0 and "the file JOB is missing" in err and "LOST_SHARD" not in err, f"{code}\n{out}{err}")
            expect(json.loads(out)["model_hash"] == whole["model_hash"], out)
            code, out, err = gkps("rewind", "--to", STEPS - 10, folder)
            expect(code == 78 and "JOB is missing" in err, f"{code}\n{out}{err}")
        # Of a job that is not finished the server does it.
        with tempfile.TemporaryDirectory() as folder:
            with Run(folder, *OPTIONS, "--servers", servers) as run:
                run.wait_steps(STEPS // 10)
            path = os.path.join(folder, f"server-{servers - 1}", "JOB")
            os.remove(path)
            code, out, err = gkps("run", "--state-dir", folder, "--quiet", "--summary", "-")
            expect(code == 0 and "the file JOB is missing" in err and os.path.exists(path), f"{code}\n{out}{err}")
            expect(json.loads(out)["model_hash"] == whole["model_hash"], out)
            code, out, err = gkps("inspect", folder)
            expect(code == 0, f"{code}\n{out}{err}")


def test_snapshots_alone_are_refused():
    for servers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            finished_job(folder, "--servers", servers)
            path = os.path.join(folder, f"server-{servers - 1}")
            for name in os.listdir(path):
                if not name.startswith("snap-"):
                    os.remove(os.path.join(path, name))
            left = sorted(os.listdir(path))
            for command in (("run", "--state-dir", folder), ("inspect", folder), ("export", folder, "-o", f"{folder}/m.npz")):
                code, out, err = gkps(*command)
                expect(code == 78 and re.search(r"JOB and the log behind that \(wal-0-\d+\.log\) are missing", out + err)
                       and "LOST_SHARD" not in err, f"{command}: {code}\n{out}{err}")
            expect(sorted(os.listdir(path)) == left, f"{left} became {sorted(os.listdir(path))}")


def test_fresh_removes_what_is_ours():
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "job")
        first = finished_job(folder)
        for name in ("server-0/notes.txt", "plan.txt"):
            path = os.path.join(folder, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write("mine\n")
            before = listing(folder)
            code, out, err = gkps("run", "--state-dir", folder, "--fresh", "--steps", 20, "--workers", 2)
            expect(code == 78 and name in err and listing(folder) == before, f"{name}: {code}\n{out}{err}")
            os.remove(path)
        code, out, err = gkps("run", "--state-dir", folder, "--fresh", "--steps", 20, "--workers", 2)
        expect(code == 0 and "removed the job" in out and first["model_hash"] not in out, f"{code}\n{out}{err}")
        with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
            expect(json.load(file)["options"]["steps"] == "20", "the options are of the former job")
        # A folder of somebody's own is left alone.
        other = os.path.join(top, "photos")
        os.mkdir(other)
        open(os.path.join(other, "cat.jpg"), "w", encoding="utf-8").close()
        for args in ([], ["--fresh"]):
            code, out, err = gkps("run", "--state-dir", other, *args)
            expect(code == 78 and "cat.jpg" in err and os.listdir(other) == ["cat.jpg"], f"{code}\n{out}{err}")


def test_two_runs_of_one_folder():
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "job")
        with Run(folder, "--steps", 100000, "--workers", 2) as run:
            run.wait_steps(1)
            code, out, err = gkps("run", "--state-dir", folder)
            expect(code == 75 and "in use" in err, f"{code}\n{out}{err}")
            model = os.path.join(top, "m.npz")
            for number in range(4):  # reading is free, also while logs are folded and removed
                run.wait_steps((number + 1) * 30)
                for args in (["inspect", folder], ["export", folder, "-o", model]):
                    code, out, err = gkps(*args)
                    expect(code == 0, f"{args} beside a living job: {code}\n{out}{err}")


def newest_log(folder):
    logs = [name for name in os.listdir(folder) if name.startswith("wal-")]
    return os.path.join(folder, max(logs, key=lambda name: int(name.split("-")[2].split(".")[0])))


def flip(path, at, bits):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bits]))


def test_a_damaged_snapshot_is_told():
    """The newest snapshot is damaged: the one before it and the log give the same model, and the log says so."""
    steps = 5 * STEPS
    options = ["--steps", steps, "--workers", 2]
    whole = summary_of(*options)
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "job")
        with Run(folder, *options) as run:
            run.wait_steps(steps // 3)
            run.process.send_signal(signal.SIGINT)
            run.wait()
        shard = os.path.join(folder, "server-0")
        newest = max((f for f in os.listdir(shard) if f.startswith("snap-")), key=lambda f: int(f.split("-")[2]))
        with open(os.path.join(shard, newest), "r+b") as file:
            file.seek(20)
            byte = file.read(1)[0]
            file.seek(20)
            file.write(bytes([byte ^ 4]))
        code, out, err = gkps("run", "--state-dir", folder)
        expect(code == 0 and whole["model_hash"] in out, f"{code}\n{out}{err}")
        expect(re.search(rf"SERVER-LOG-CUT the snapshot of version \d+ and the log were used: .*{newest}, offset 0", err), err)
        expect(os.path.exists(os.path.join(shard, newest + ".damaged")), os.listdir(shard))


def test_inspect_finds_damage():
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as top:
        job, copy = os.path.join(top, "job"), os.path.join(top, "copy")
        finished_job(job)
        code, out, err = gkps("inspect", job, "--json")
        report = json.loads(out)
        expect(code == 0 and report["ok"] and not err, f"{code}\n{out}{err}")
        servers = [d for d in report["directories"] if d["kind"] == "server"]
        workers = [d for d in report["directories"] if d["kind"] == "worker"]
        expect(len(servers) == 2 and all(d["version"] == STEPS and d["finished"] and d["replay"]["hashes"] > 1
                                         for d in servers), f"{servers}")
        expect(len(workers) == 2 and all(d["state"] == "left" for d in workers), f"{workers}")
        used = {os.path.join(d["path"], f["name"]): f.get("used", f["bytes"]) for d in servers for f in d["files"]}
        for path, size in used.items():
            for _ in range(4):
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(os.path.dirname(path), copy)
                name = os.path.basename(path)
                at = rng.randrange(size)
                flip(os.path.join(copy, name), at, 1 << rng.randrange(8))
                code, out, err = gkps("inspect", copy)
                # Bytes between the parts of a snapshot belong to nobody; the last records of a log may be torn.
                torn = "torn tail" in out and name in out
                idle = name.startswith("snap-") and code == 0
                expect((code == 65 and "DAMAGED" in out and name in out) or torn or idle, f"{name}, byte {at}: {code}\n{out}{err}")
        slot = os.path.join(workers[0]["path"], "slot")
        for at in (100, 4096 + 20, 3 * 4096 + 20, os.path.getsize(slot) // 2, os.path.getsize(slot) - 5000):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(os.path.dirname(slot), copy)
            flip(os.path.join(copy, "slot"), at, 1)
            code, out, err = gkps("inspect", copy)
            expect(code in (0, 65) and ("DAMAGED" in out) == (code == 65), f"slot, byte {at}: {code}\n{out}{err}")
            expect(code == 65 or at > 5 * 4096, f"slot, byte {at}, is not missed:\n{out}{err}")
        log = newest_log(os.path.join(job, "server-0"))
        for cut in (1, 100, 191):
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(os.path.dirname(log), copy)
            with open(os.path.join(copy, os.path.basename(log)), "r+b") as file:
                file.truncate(used[log] - cut)
            code, out, err = gkps("inspect", copy)
            offset = used[log] - 192  # of FINISHED
            torn = re.search(r"torn tail of (\d+) bytes: .*/(\S+), offset (\d+): ", out)
            expect(code == 0 and torn and torn.group(2) == os.path.basename(log) and int(torn.group(3)) == offset
                   and 0 < int(torn.group(1)) <= 192 - cut, f"{cut}: {code}\n{out}{err}")


def test_inspect_tells_unreadable_from_damaged():
    with tempfile.TemporaryDirectory() as top:
        job, copy = os.path.join(top, "job"), os.path.join(top, "copy")
        finished_job(job)
        snapshot = next(name for name in os.listdir(os.path.join(job, "server-0")) if name.startswith("snap-"))
        for name in ("server-0/JOB", f"server-0/{snapshot}", "worker-1/slot"):
            shutil.copytree(job, copy)
            path = os.path.join(copy, name)
            if os.geteuid() == 0:  # root may read everything, but nothing follows a link
                os.rename(path, path + ".away")
                os.symlink(path + ".away", path)
            else:
                os.chmod(path, 0)
            code, out, err = gkps("inspect", copy)
            expect(code == 78 and "CANNOT BE READ: " in out and "DAMAGED" not in out, f"{name}: {code}\n{out}{err}")
            code, out, err = gkps("inspect", "--json", copy)
            expect(code == 78 and [d["path"] for d in json.loads(out)["directories"] if d.get("unreadable")]
                   == [os.path.dirname(path)], f"{name}: {code}\n{out}{err}")
            # Damage elsewhere is what counts.
            flip(os.path.join(copy, "server-1", "JOB"), 50, 1)
            code, out, err = gkps("inspect", copy)
            expect(code == 65 and "CANNOT BE READ: " in out and "DAMAGED: " in out, f"{name}: {code}\n{out}{err}")
            shutil.rmtree(copy)


def mix(x):
    x ^= x >> 30
    x = x * 0xbf58476d1ce4e5b9 % 2**64
    x ^= x >> 27
    x = x * 0x94d049bb133111eb % 2**64
    return x ^ x >> 31


def model_hash(tensors):
    """Of the tensors' bytes, in the order of the model."""
    words = struct.unpack("<%dI" % (sum(map(len, tensors)) // 4), b"".join(tensors))
    return f"{sum(mix((mix((i + 0x9e3779b97f4a7c15) % 2**64) + w) % 2**64) for i, w in enumerate(words)) % 2**64:016x}"


def parse_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    notes = header.pop("__metadata__")
    return {name: data[entry["data_offsets"][0]:entry["data_offsets"][1]] for name, entry in header.items()}, notes


def parse_npz(path):
    tensors = {}
    with zipfile.ZipFile(path) as archive:
        expect(archive.testzip() is None, "a checksum of the archive is wrong")
        for name in archive.namelist():
            data = archive.read(name)
            expect(data[:8] == b"\x93NUMPY\x01\x00" and data[10:].startswith(b"{'descr': '<f4'"), f"{data[:80]}")
            tensors[name.removesuffix(".npy")] = data[10 + struct.unpack("<H", data[8:10])[0]:]
    return tensors


def test_export_is_the_model():
    with tempfile.TemporaryDirectory() as top:
        folder = os.path.join(top, "job")
        whole = finished_job(folder)
        safe, npz = os.path.join(top, "m.safetensors"), os.path.join(top, "m.npz")
        for path in (safe, npz):
            code, out, err = gkps("export", folder, "-o", path)
            expect(code == 0 and whole["model_hash"] in out, f"{code}\n{out}{err}")
        tensors, notes = parse_safetensors(safe)
        expect(model_hash(list(tensors.values())) == whole["model_hash"] == notes["model_hash"], f"{notes}")
        expect(parse_npz(npz) == tensors and "fc1.weight" in tensors, f"{list(tensors)}")
        try:
            import numpy
            with numpy.load(npz) as arrays:
                expect({name: arrays[name].tobytes() for name in arrays.files} == tensors, "numpy reads something else")
        except ImportError:
            print("   without numpy: compared by the parsers of this test alone", flush=True)
        # One version of all shards, also an older one: that of a shorter run.
        shorter = summary_of("--steps", STEPS - 10, "--workers", 2)
        code, out, err = gkps("export", os.path.join(folder, "server-1"), os.path.join(folder, "server-0"), "-o", safe,
                              "--at", STEPS - 10)
        expect(code == 0 and shorter["model_hash"] in out, f"{shorter['model_hash']}: {code}\n{out}{err}")
        before = listing(top)
        for args, code, words in [(["--at", STEPS + 1], 78, "is not there"), (["--at", 1], 78, "cannot be reached"),
                                  (["--format", "tar"], 64, "--format")]:
            result, out, err = gkps("export", folder, "-o", safe, *args)
            expect(result == code and words in err, f"{args}: {result}\n{out}{err}")
        result, out, err = gkps("export", os.path.join(folder, "server-1"), "-o", safe)
        expect(result == 78 and "shard 0 of 2 is missing" in err, f"{result}\n{out}{err}")
        result, out, err = gkps("export", folder, "-o", os.path.join(top, "nowhere", "m.npz"))
        expect(result == 74, f"{result}\n{out}{err}")
        result, out, err = gkps("export", folder, "-o", "/dev/full", "--format", "npz")
        expect(result == 74 and "no regular file" in err and "--summary" not in err, f"{result}\n{out}{err}")
        # Neither the model nor a summary replaces the state that it comes from.
        for name in ("server-0/JOB", "server-1/m.npz", "worker-1/slot", "job.json", "LOCK"):
            for args in (["export", folder, "--format", "npz", "-o"], ["run", "--quiet", "--state-dir", folder, "--summary"]):
                result, out, err = gkps(*args, os.path.join(folder, name))
                expect(result == 78 and "the state of a job is kept there" in err, f"{args} {name}: {result}\n{out}{err}")
        expect(listing(top) == before, "an export that failed has left something")
        empty = os.path.join(top, "new")
        os.mkdir(empty)
        result, out, err = gkps("run", "--quiet", "--state-dir", empty, "--summary", os.path.join(empty, "job.json"))
        expect(result == 78 and "the state of a job is kept there" in err, f"{result}\n{out}{err}")


def test_run_begins_with_a_file():
    still = ["--workers", 2, "--steps", 1, "--optimizer", "sgd", "--lr", 0]  # one step that changes nothing
    with tempfile.TemporaryDirectory() as top:
        folder, begun = os.path.join(top, "job"), os.path.join(top, "begun")
        whole = summary_of("--state-dir", folder, *OPTIONS)
        expect(summary_of(*still)["model_hash"] != whole["model_hash"], "the seed gives the same model")
        for name in ("m.safetensors", "m.npz"):
            path = os.path.join(top, name)
            expect(gkps("export", folder, "-o", path)[0] == 0, "export")
            summary = summary_of("--init", path, *still)
            expect(summary["model_hash"] == whole["model_hash"], f"{name}: {summary['model_hash']}, not {whole['model_hash']}")
        # The file counts at the beginning alone, and belongs to the job from then on.
        with Run(begun, "--init", path, "--steps", 5000, "--workers", 2) as run:
            run.wait_steps(1)
            run.process.send_signal(signal.SIGINT)
            run.wait()
        os.rename(path, path + ".away")
        with Run(begun) as run:
            run.wait_steps(1)
            expect("goes on at version" in run.text(), run.text())
            run.process.send_signal(signal.SIGINT)
            run.wait()
        code, out, err = gkps("run", "--state-dir", begun, "--init", os.path.join(top, "m.safetensors"))
        expect(code == 78 and "--init" in err, f"{code}\n{out}{err}")
        os.rename(path + ".away", path)
        # What is wrong with a file is one line.
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) - 100)
        for args, words in [(["--init", path], "cut off"), (["--init", os.path.join(top, "none")], "cannot be read"),
                            (["--init", program("gkps")], "neither"),
                            (["--init", os.path.join(top, "m.safetensors"), "--model", "softmax"], "'fc1.weight' is 200 x 64, in the model 10 x 64")]:
            code, out, err = gkps("run", "--quiet", *still, *args)
            expect(code == 65 and words in err, f"{args}: {code}\n{out}{err}")


def test_a_refused_file_leaves_nothing():
    with tempfile.TemporaryDirectory() as top:
        folder, state = os.path.join(top, "job"), os.path.join(top, "state")
        good, bad, other = (os.path.join(top, name) for name in ("good.safetensors", "bad.safetensors", "other.safetensors"))
        finished_job(folder)
        expect(gkps("export", folder, "-o", good)[0] == 0, "export")
        finished_job(os.path.join(top, "softmax"), "--model", "softmax")
        expect(gkps("export", os.path.join(top, "softmax"), "-o", other)[0] == 0, "export")
        with open(good, "rb") as file:
            bytes_of = file.read()
        for content, words in ((bytes_of[:-100], "bad.safetensors"), (bytes_of[:-4] + b"\0\0\xc0\x7f", "not finite")):
            with open(bad, "wb") as file:
                file.write(content)
            before = listing(top)
            for args in ([], ["--fresh"]):
                code, out, err = gkps("run", "--state-dir", state, "--init", bad, *OPTIONS, *args)
                expect(code == 65 and words in err and not os.path.exists(state), f"{code}\n{out}{err}")
            code, out, err = gkps("run", "--state-dir", folder, "--fresh", "--init", bad, *OPTIONS)
            expect(code == 65 and words in err and listing(top) == before, f"{code}\n{out}{err}")
        # What only the workers find out is after the start, but nothing has begun.
        code, out, err = gkps("run", "--state-dir", state, "--init", other, *OPTIONS)
        expect(code == 65 and os.path.exists(os.path.join(state, "job.json")), f"{code}\n{out}{err}")
        code, out, err = gkps("run", "--state-dir", state, "--init", good, *OPTIONS)
        expect(code == 0 and "nothing had begun: removed the job" in out, f"{code}\n{out}{err}")
        code, out, err = gkps("run", "--state-dir", state, "--init", other, *OPTIONS)
        expect(code == 78 and "--fresh" in err and not out, f"{code}\n{out}{err}")


def test_repair_says_what_can_be_done():
    code, out, err = gkps("repair", "--shard", 1, "--from-worker", 2)
    expect(code == 69 and "gkps rewind" in err and "--fresh" in err and err.count("\n") == 1 and not out, f"{code}\n{out}{err}")
    code, out, err = gkps("repair", "--shard", 1)
    expect(code == 64 and "--from-worker" in err, f"{code}\n{out}{err}")


def test_rewind():
    keep = ["--keep-versions", 100000]
    with tempfile.TemporaryDirectory() as top:
        folder, old = os.path.join(top, "job"), os.path.join(top, "server-1.old")
        server = os.path.join(folder, "server-1")
        whole = finished_job(folder, *keep)
        shorter = summary_of("--steps", 120, "--workers", 2)
        before = listing(folder)
        for args, code, words in [(["--to", STEPS + 1, folder], 78, "is not there"), ([folder], 64, "--to"),
                                  (["--to", 5, server], 78, "shard 0 of 2 is missing")]:
            result, out, err = gkps("rewind", *args)
            expect(result == code and words in err and listing(folder) == before, f"{args}: {result}\n{out}{err}")
        code, out, err = gkps("rewind", "--to", 120, folder, "--dry-run")
        expect(code == 0 and out.count("to version 120 of epoch 1") == 2 and listing(folder) == before, f"{code}\n{out}{err}")
        shutil.copytree(server, old)
        code, out, err = gkps("rewind", "--to", 120, folder)
        expect(code == 0 and "is at version 120 in epoch 1" in out, f"{code}\n{out}{err}")
        # Cut short after the first shard: nothing can be done with the job but to do the rest.
        shutil.rmtree(server)
        os.rename(old, server)
        code, out, err = gkps("export", folder, "-o", os.path.join(top, "m.npz"))
        expect(code == 78 and "rewind" in err, f"{code}\n{out}{err}")
        code, out, err = gkps("rewind", "--to", 120, folder)
        expect(code == 0 and "(was done)" in out and "is at version 120 in epoch 1" in out, f"{code}\n{out}{err}")
        expect(all("-1-" in name for name in os.listdir(server) if name.startswith(("wal-", "snap-"))), f"{os.listdir(server)}")
        code, out, err = gkps("export", folder, "-o", os.path.join(top, "m.npz"))
        expect(code == 0 and shorter["model_hash"] in out, f"{code}\n{out}{err}")
        # The workers had left in the old epoch; they take up the work again, with empty residuals.
        with Run(folder, *keep) as run:
            run.wait_steps(130)
            code, out, err = gkps("rewind", "--to", 120, folder)
            expect(code == 75 and "running" in err, f"{code}\n{out}{err}")
            run.process.kill()
            run.wait()
        code, out, err = gkps("run", "--state-dir", folder, *keep)
        expect(code == 0 and f"step {STEPS}/{STEPS}" in out, f"{code}\n{out}{err}")
        # From version 0 all is as at first, whatever was before.
        fresh = os.path.join(top, "again")
        finished_job(fresh, *keep)
        expect(gkps("rewind", "--to", 0, fresh)[0] == 0, "to version 0")
        again = summary_of("--state-dir", fresh, *keep)
        expect(again["model_hash"] == whole["model_hash"] and again["version"] == STEPS, f"{again}")
        expect(gkps("inspect", folder, fresh)[0] == 0, "inspect")


main(globals())
