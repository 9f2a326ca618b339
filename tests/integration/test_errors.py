"""Goal: wrong input gives one clear line and the right exit code, and harms nobody else.
Method: the programs with wrong flags, data, addresses and peers; exit codes and words are compared."""
import gzip
import json
import os
import re
import socket
import struct
import subprocess
import tempfile

from cluster import Cluster, address_of, environment, expect, free_addresses, gkps, job_hash, main, program, train, wait_until

TRAINING = ("--steps", 20, "--batch", 16)


def run(name, *args, env=None):
    args = [arg if isinstance(arg, bytes) else str(arg) for arg in args]
    done = subprocess.run([program(name), *args], capture_output=True, text=True, timeout=120, check=False,
                          stdin=subprocess.DEVNULL, env=env or environment())
    return done.returncode, (done.stdout + done.stderr).strip()


def expect_error(code, words, name, *args, env=None, lines=1):
    found, text = run(name, *args, env=env)
    last = text.splitlines()[-lines:] if text else [""]
    expect(found == code, f"{name} {args}: exit code {found}, expected {code}\n{text}")
    for word in words:
        expect(word in "\n".join(last), f"{name} {args}: '{word}' is not in the error:\n{text}")


def test_wrong_flags():
    for name in ("gkps-server", "gkps-worker"):
        expect_error(64, ["--wrong"], name, "--wrong", 1)
        expect_error(64, ["--workers", "1 to 1024"], name, "--workers", 0)
        expect_error(64, ["--workers", "1 to 1024"], name, "--workers", "many")
        expect_error(64, ["extra"], name, "extra")
        expect_error(64, ["GKPS_WORKERS", "x"], name, env=environment(GKPS_WORKERS="x"))
        expect_error(78, ["/does/not/exist.yaml"], name, "--config", "/does/not/exist.yaml")
    expect_error(64, ["--density"], "gkps-worker", "--density", 0)
    expect_error(64, ["--density"], "gkps-worker", "--density", 1.5)
    expect_error(64, ["--rank"], "gkps-worker", "--workers", 2)
    expect_error(64, ["--rank", "7"], "gkps-worker", "--workers", 2, "--rank", 7)
    expect_error(64, ["SLURM_PROCID", "7"], "gkps-worker", "--workers", 2, env=environment(SLURM_PROCID=7))
    for bad in ("nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:99999999"):
        expect_error(64, ["--servers", bad], "gkps-worker", "--servers", bad)
    for name in ("gkps-server", "gkps-worker"):
        for job in ("", "x" * 64, "two\nlines", b"\xff"):
            expect_error(64, ["--job", "name"], name, b"--job=" + job if isinstance(job, bytes) else f"--job={job}")
        expect_error(64, ["--launcher-fd", "77"], name, "--launcher-fd", 77)
        expect_error(64, ["--cpu", "reference"], name, "--cpu", "sse9")
        expect_error(64, ["GKPS_CPU", "sse9"], name, env=environment(GKPS_CPU="sse9"))
    expect_error(64, ["--steps", "4294967295"], "gkps-worker", "--steps", 1 << 32)
    expect_error(64, ["--milestones", "x"], "gkps-worker", "--schedule", "milestones", "--milestones", "5,x")
    expect_error(64, ["frobnicate"], "gkps", "frobnicate")
    expect_error(64, ["--density"], "gkps", "run", "--density", 2)
    expect_error(64, ["nosuchmodel", "fnn3"], "gkps-worker", "--model", "nosuchmodel")
    expect_error(64, ["nosuchway", "gaussk"], "gkps-worker", "--compressor", "nosuchway")


def test_wrong_file():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("steps: 10\nworkerz: 3\n")
        expect_error(78, ["job.yaml", "2", "workerz"], "gkps-worker", "--config", path)
        with open(path, "w", encoding="utf-8") as file:
            file.write("steps: 10\nbatch: none\n")
        expect_error(78, ["job.yaml:2", "batch"], "gkps-worker", "--config", path)
        with open(path, "w", encoding="utf-8") as file:
            file.write("steps: 10\nrank: 9\n")
        expect_error(78, ["job.yaml:2", "rank", "9"], "gkps-worker", "--config", path)


def test_pipes_and_folders_are_no_files():
    with tempfile.TemporaryDirectory() as folder:
        pipe, state = os.path.join(folder, "f.npz"), os.path.join(folder, "state")
        os.mkfifo(pipe)
        os.mkdir(state)
        os.mkfifo(os.path.join(state, "job.json"))
        for code, flag in ((65, "--init"), (78, "--faults"), (78, "--config")):
            expect_error(code, [pipe, "is no regular file"], "gkps", "run", flag, pipe)
            expect_error(code, [folder, "is a folder"], "gkps", "run", flag, folder)
        expect_error(78, ["job.json", "is no regular file"], "gkps", "run", "--state-dir", state)
        for name in ("gkps-server", "gkps-worker"):
            expect_error(78, [pipe, "is no regular file"], name, "--config", pipe)
        expect(sorted(os.listdir(state)) == ["job.json"], os.listdir(state))


def test_wrong_state_folders():
    with tempfile.TemporaryDirectory() as folder:
        file, link, empty = (os.path.join(folder, name) for name in ("file", "link", "empty"))
        os.symlink(os.path.join(folder, "nowhere"), link)
        os.mkdir(empty)
        for path in (file, os.path.join(empty, "job.json")):
            with open(path, "w", encoding="utf-8"):
                pass
        for path, words in ((file, "is no folder"), ("/dev/null", "is no folder"), (link, "is a link to nothing"),
                            (os.path.join(file, "x"), "Not a directory"), (os.path.join(folder, "x" * 300), "File name too long")):
            for fresh in ((), ("--fresh",)):
                expect_error(78, ["--state-dir: ", words], "gkps", "run", "--state-dir", path, *fresh)
        expect_error(78, ["job.json is damaged", "give the options of the job again"], "gkps", "run", "--state-dir", empty)


def test_wrong_data():
    def idx(count, label=1):
        images = struct.pack(">IIII", 0x803, count, 28, 28) + bytes(784 * count)
        labels = struct.pack(">II", 0x801, count) + bytes([label]) * count
        return images, labels

    expect_error(65, ["/does/not/exist"], "gkps-worker", "--data", "mnist:/does/not/exist")
    expect_error(64, ["--data", "nosuchset", "digits"], "gkps-worker", "--data", "nosuchset")
    images, labels = idx(20)
    cases = {
        "a missing file": ({"t10k-images-idx3-ubyte": images}, "t10k-labels-idx1-ubyte"),
        "a truncated file": ({"t10k-images-idx3-ubyte": images[:-5], "t10k-labels-idx1-ubyte": labels}, "t10k-images"),
        "a truncated gzip": ({"t10k-images-idx3-ubyte.gz": gzip.compress(images)[:-12], "t10k-labels-idx1-ubyte": labels},
                             "t10k-images"),
        "a wrong magic": ({"t10k-images-idx3-ubyte": b"\1" + images[1:], "t10k-labels-idx1-ubyte": labels}, "t10k-images"),
        "a wrong label": ({"t10k-images-idx3-ubyte": images, "t10k-labels-idx1-ubyte": idx(20, 77)[1]}, "77"),
    }
    for name, (files, word) in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            for file_name, content in files.items():
                with open(os.path.join(folder, file_name), "wb") as file:
                    file.write(content)
            expect_error(65, [word], "gkps-worker", "--data", f"mnist:{folder}")
            code, _, err = gkps("run", "--data", f"mnist:{folder}")
            expect(code == 65 and word in err, f"gkps run with {name}: {code}\n{err}")


def test_unwritable_summary_is_found_before_training():
    code, out, err = gkps("run", "--steps", 100000000, "--summary", "/does/not/exist/summary.json")
    expect(code == 78 and "/does/not/exist" in out + err, f"{code}\n{out}\n{err}")


def test_the_tool_knows_what_the_workers_know():
    """Names that the tool judges before the start are those that the workers accept."""
    for flag, ending in (("--model", r"choose (\S+)"), ("--compressor", r"does not exist: (\S+)")):
        worker = re.search(ending, run("gkps-worker", flag, "nosuch")[1]).group(1)
        tool = re.search(r"'nosuch' is not (.*)$", run("gkps", "run", flag, "nosuch")[1]).group(1)
        expect(set(worker.split("|")) == set(re.split(" or |, ", tool)), f"{flag}: the worker knows {worker}; the tool {tool}")


def test_wrong_options_of_a_run_start_nothing():
    for place, env, args in (("--momentum: ", {}, ("--momentum", 1)), ("--warmup: ", {}, ("--steps", 5, "--warmup", 6)),
                             ("--schedule: ", {}, ("--schedule", "milestones")), ("--model: ", {}, ("--model", "")),
                             ("GKPS_SEED (seed): ", {"GKPS_SEED": 1 << 63}, ()), ("--data: ", {}, ("--data", "x"))):
        code, out, err = gkps("run", *args, env=environment(**env))
        expect(code == 64 and out == "" and err.startswith(f"gkps run: {place}") and err.count("\n") == 1,
               f"{args} {env}: {code}\n{out}\n{err}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write("steps: 10\nwarmup: 11\n")
        code, out, err = gkps("run", "--config", path)
        expect(code == 78 and out == "" and "job.yaml:2: warmup: 11 is more than" in err, f"{code}\n{out}\n{err}")


def test_a_summary_is_a_file():
    """A pipe without a reader would block the run at its end, and a link would be replaced."""
    with tempfile.TemporaryDirectory() as folder:
        pipe, link, target = (os.path.join(folder, name) for name in ("pipe", "link", "target"))
        os.mkfifo(pipe)
        os.symlink("target", link)
        code, out, err = gkps("run", "--steps", 2, "--summary", pipe, deadline_s=20)
        expect(code == 78 and out == "" and "no regular file" in err, f"{code}\n{out}\n{err}")
        code, out, err = gkps("run", "--steps", 2, "--summary", link)
        expect(code == 0 and os.path.islink(link) and os.path.isfile(target), f"{code}\n{out}\n{err}")


def stdout_of(target, *args, deadline_s=20):
    """Run a program with its standard output at `target`: (exit code, standard error)."""
    done = subprocess.run([program(args[0]), *map(str, args[1:])], stdout=target, stderr=subprocess.PIPE, text=True,
                          timeout=deadline_s, check=False, stdin=subprocess.DEVNULL, env=environment())
    return done.returncode, done.stderr


def test_output_that_does_not_arrive():
    """A full disk is an error with a line; a reader that has had enough is none, and ends what is printed for it alone."""
    short = ("gkps", "run", "--steps", 2, "--servers", 1, "--workers", 1, "--model", "softmax")
    with Cluster() as cluster:
        status = ("gkps", "status", "--server", address_of(cluster.server()))
        texts = [(name, flag) for name in ("gkps", "gkps-server", "gkps-worker") for flag in ("--help", "--version")]
        texts += [("gkps", "run", "--print-config"), ("gkps", "status", "--help"), ("gkps-worker", "--print-config")]
        for args in (*texts, status, (*status, "--watch"), (*status, "--json"), short, (*short, "--quiet", "--summary", "-")):
            with open("/dev/full", "w", encoding="utf-8") as full:
                code, err = stdout_of(full, *args)
            expect(code == 74 and "No space left" in err and err.count("\n") == 1, f"{args} into a full disk: {code}\n{err}")
        for args, codes in ((status, {141}), ((*status, "--watch"), {141}), ((*status, "--json", "--watch"), {141}),
                            (short, {0}), ((*short, "--summary", "-"), {141}), (("gkps", "--help"), {0, -13})):
            reader, writer = os.pipe()
            os.close(reader)
            try:
                code, err = stdout_of(writer, *args)
            finally:
                os.close(writer)
            expect(code in codes and "rror" not in err and "pipe" not in err, f"{args} without a reader: {code}\n{err}")


def test_what_stands_at_an_address():
    with socket.socket() as nobody, socket.socket() as silent:
        nobody.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port, words in ((nobody.getsockname()[1], "nobody listens"), (silent.getsockname()[1], "says nothing")):
            code, _, err = gkps("status", "--timeout", 0.3, "--server", f"127.0.0.1:{port}")
            expect(code == 69 and words in err, f"{words}: {code}\n{err}")


def test_texts_of_the_user_are_shown_safely():
    for args in (("\x1b[31mred\nline",), ("run", "--optimizer", "\x1b[31m\n" + "x" * 5000), ("run", "--" + "y" * 5000),
                 ("run", "z" * 5000), ("w" * 5000,), ("run", "--model", "\x1b" + "v" * 5000)):
        code, text = run("gkps", *args)
        expect(code == 64 and "\x1b" not in text and text.count("\n") == 0 and len(text) < 600,
               f"{args[-1][:20]}: {code} {len(text)} characters\n{text[:600]}")
        expect(len(args[-1]) < 100 or "\u2026" in text, f"the cut is not shown: {text}")


def test_binding():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        expect_error(75, [str(port)], "gkps-server", "--bind", f"tcp://127.0.0.1:{port}")
    for everybody in ("tcp://0.0.0.0:*", "tcp://*:*", "tcp://[::]:*", "tcp://[::ffff:0.0.0.0]:*"):
        expect_error(78, ["--bind", "--insecure"], "gkps-server", "--bind", everybody)
    for bad in ("nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:99999999", "tcp://::1:5600", "tcp://[::1:5600"):
        expect_error(64, ["--bind", bad], "gkps-server", "--bind", bad)
    expect_error(78, ["--bind", "no.such.host.invalid"], "gkps-server", "--bind", "tcp://no.such.host.invalid:1")
    expect_error(64, ["--shard"], "gkps-server", "--shard", 3, "--servers", 2)


def has_ipv6_loopback():
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
        return True
    except OSError:
        return False


def test_both_families():
    """The address that a launcher is told can be connected to, also where the server listens everywhere."""
    expected = train("--servers", 1, "--workers", 1, *TRAINING)["model_hash"]
    cases = [("tcp://127.0.0.1:*", "tcp://127.0.0.1:"), ("tcp://localhost:*", "tcp://"), ("tcp://*:*", "tcp://127.0.0.1:")]
    if has_ipv6_loopback():
        cases += [("tcp://[::1]:*", "tcp://[::1]:"), ("tcp://[::]:*", "tcp://[::1]:")]
    else:
        print("this machine has no ::1: only the refusal of IPv6 addresses is tested (test_binding)", flush=True)
    for bind, told in cases:
        with Cluster() as cluster:
            server = cluster.server(0, 1, 1, "--insecure", bind=bind)
            address = address_of(server)
            expect(address.startswith(told), f"--bind {bind} tells {address}")
            if bind == "tcp://localhost:*":
                address = f"tcp://localhost:{address.rpartition(':')[2]}"
            worker = cluster.worker(0, 1, [address], *TRAINING)
            expect(worker.wait() == 0, worker.text() + server.text())
            expect(job_hash([server])[0] == expected, f"{bind} gives another model")


def test_absent_server():
    address = free_addresses(1)[0]
    expect_error(69, [address], "gkps-worker", "--servers", address, "--deadline", 1)
    code, out, err = gkps("status", "--server", address, "--timeout", 1)
    expect(code == 69 and address in out + err, f"{code}\n{out}\n{err}")


def test_missing_workers():
    with Cluster() as cluster:
        server = cluster.server(0, 1, 3, "--deadline", 4)
        worker = cluster.worker(1, 3, [address_of(server)], "--deadline", 1, *TRAINING)
        expect(worker.wait() == 69 and server.wait() == 69, f"{worker.text()}\n{server.text()}")
        expect("1 of 3 workers" in worker.find("death")["words"], worker.text())
        death = server.find("death")["words"]
        expect("rank 0" in death and "2" in death, f"the server does not name the missing ranks: {death}")


def test_strangers_harm_nothing():
    """Workers of another job, of another spec, of a held rank: refused by name while the job goes on to the right model."""
    expected = train("--servers", 1, "--workers", 2, "--steps", 400, "--batch", 16)["model_hash"]
    training = ("--steps", 400, "--batch", 16)
    with Cluster() as cluster:
        server = cluster.server(0, 1, 2)
        address = address_of(server)
        first = cluster.worker(0, 2, [address], *training)
        server.wait_text(r"rank 0|worker 0")
        held = cluster.worker(0, 2, [address], "--deadline", 1, *training)
        other_job = cluster.worker(1, 2, [address], "--job", "another", "--deadline", 1, *training)
        other_spec = cluster.worker(1, 2, [address], "--lr", 0.5, "--deadline", 1, *training)
        other_size = cluster.worker(2, 3, [address], "--deadline", 1, *training)
        for daemon, words in ((held, "rank 0"), (other_job, "another"), (other_spec, "spec"), (other_size, "3")):
            expect(daemon.wait() == 77, f"exit code {daemon.process.returncode}\n{daemon.text()}")
            expect(words in daemon.find("death")["words"], daemon.find("death")["words"])
        second = cluster.worker(1, 2, [address], *training)
        expect(first.wait() == 0 and second.wait() == 0 and server.wait() == 0, first.text() + server.text())
        found, _ = job_hash([server])
        expect(found == expected, f"strangers changed the model: {found}, expected {expected}")


def test_servers_in_the_wrong_order():
    with Cluster() as cluster:
        servers = [cluster.server(shard, 2, 1) for shard in (0, 1)]
        addresses = [address_of(server) for server in servers]
        worker = cluster.worker(0, 1, addresses[::-1], "--deadline", 2, *TRAINING)
        expect(worker.wait() == 77 and "shard" in worker.find("death")["words"], worker.text())


def server_status(address):
    code, out, err = gkps("status", "--json", "--server", address)
    expect(code == 0, f"{code}\n{out}\n{err}")
    return json.loads(out)["servers"][0]["status"]


def test_noise():
    """Bytes that are no ZeroMQ, a stray HTTP request, half a greeting: the job goes on."""
    expected = train("--servers", 1, "--workers", 1, *TRAINING)["model_hash"]
    with Cluster() as cluster:
        server = cluster.server()
        address = address_of(server)
        host, port = address.removeprefix("tcp://").split(":")
        for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(100000), b"\xff\0\0\0\0", b"\1\0\1\0\1\0"):
            with socket.create_connection((host, int(port))) as stranger:
                stranger.sendall(noise)
        wait_until(lambda: server_status(address)["net"]["rejected"] > 0, "the noise is counted")
        server.wait_text("SERVER-REJECTED")
        worker = cluster.worker(0, 1, [address], *TRAINING)
        expect(worker.wait() == 0 and server.wait() == 0, worker.text() + server.text())
        expect(job_hash([server])[0] == expected, "noise changed the model")


main(globals())
