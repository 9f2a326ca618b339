"""Goal: `gkps run -- COMMAND` starts copies of any program with their place in the environment, shows what they write, says in
words how they ended, and leaves nothing of their trees behind; one that trains gives the model of the same job without it.
Method: small programs of Python and shell; some exec gkps-worker, which reads the same variables; signals, exit codes, words."""
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time

from cluster import Run, environment, expect, gkps, main, processes_of, program, train, wait_until

TRAINING = ("--steps", 30, "--seed", 5)
WORKER = ("sh", "-c", f"exec {program('gkps-worker')} --batch 16 --log-level warn")
SHOW = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1] + os.environ['RANK'], 'w'))"


def run(*args, **more):
    """Options, then the command as a list."""
    *options, command = args
    return gkps("run", *options, "--", *command, env=environment(**more))


def of_job(job):
    """All processes of its tree, whatever they have become: what they run may not name the job, their environment does."""
    return processes_of(job, environment=True)


def environments(*options, workers=2, **more):
    with tempfile.TemporaryDirectory() as folder:
        code, out, err = run("--servers", 2, "--workers", workers, *options, (sys.executable, "-c", SHOW, folder + "/"), **more)
        expect(code == 65 and "the program never started with gkps" in err, f"{code}\n{out}\n{err}")
        found = []
        for rank in range(workers):
            with open(os.path.join(folder, str(rank)), encoding="utf-8") as file:
                found.append(json.load(file))
        return found, out


def test_what_a_program_finds_in_its_environment():
    found, out = environments("--job", "there", "--density", "1e-3", GKPS_LR="0.25", GKPS_CPU="reference", RANK="9", WORLD_SIZE="9",
                              GKPS_TAKEOVER="true")
    for rank, env in enumerate(found):
        wanted = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1",
                  "GKPS_RANK": rank, "GKPS_WORKERS": 2, "GKPS_JOB": "there", "GKPS_LAUNCHER_FD": 3, "GKPS_DENSITY": "1e-3",
                  "GKPS_LR": "0.25", "GKPS_CPU": "reference", "OMP_NUM_THREADS": max(1, len(os.sched_getaffinity(0)) // 2)}
        for name, value in wanted.items():
            expect(env.get(name) == str(value), f"{name} is {env.get(name)}, not {value}")
        expect(re.fullmatch(r"tcp://127\.0\.0\.1:\d+,tcp://127\.0\.0\.1:\d+", env["GKPS_SERVERS"]), env["GKPS_SERVERS"])
        expect(0 < int(env["MASTER_PORT"]) < 65536 and env["MASTER_PORT"] == found[0]["MASTER_PORT"], env["MASTER_PORT"])
        expect(re.fullmatch(r"cpu|cuda:\d", env["GKPS_DEVICE"]), env["GKPS_DEVICE"])
        # No default of ours overrides a setting of the program, and nobody else's place gets through.
        for name in ("STEPS", "SEED", "BATCH", "MODEL", "COMPRESSOR", "OPTIMIZER", "DEADLINE", "TAKEOVER", "STATE_DIR",
                     "ALLOW_FAULTS"):
            expect(f"GKPS_{name}" not in env, f"GKPS_{name}={env.get(f'GKPS_{name}')}")
    expect("job there: " in out and "; 2 servers, 2 workers, density 1e-3, lr 0.25" in out, out)
    expect("OMP_NUM_THREADS=" in out, out)


def test_what_the_user_has_set_stays():
    found, out = environments("--log-level", "error", "--quiet", workers=1, OMP_NUM_THREADS="7", GKPS_DEVICE="mine",
                              CUDA_VISIBLE_DEVICES="5")
    env = found[0]
    expect((env["OMP_NUM_THREADS"], env["GKPS_DEVICE"], env["CUDA_VISIBLE_DEVICES"]) == ("7", "mine", "5"), f"{env}")
    expect(env["GKPS_LOG_LEVEL"] == "error" and out == "", f"{env['GKPS_LOG_LEVEL']} {out}")


def test_lines_have_the_rank_in_front_and_are_whole():
    script = """
import os, sys
rank = os.environ["RANK"]
for i in range(300):
    sys.stdout.write(f"line {i} of {rank} " + rank * 200 + "\\n")
sys.stdout.flush()
os.write(1, b"long " + b"x" * 50000 + b" end\\n")
os.write(2, b"to standard error \\x1b[31m\\x00\\xff \\xc3\\xa4\\n10 %\\r 90 %\\r\\n")
os.write(1, b"without end")
sys.exit(7 if rank == "0" else 0)
"""
    code, out, err = run("--workers", 2, "--quiet", (sys.executable, "-c", script))
    expect(code == 7 and "worker 0 ended with code 7; the run ends" in err, f"{code}\n{err}")
    lines = out.split("\n")
    expect(lines.pop() == "" and all(re.match(r"\[[01]\] ", line) for line in lines), f"{[l[:80] for l in lines if l[:1] != '[']}")
    own = [line[4:] for line in lines if line.startswith("[0] ")]
    expect(own[:300] == [f"line {i} of 0 " + "0" * 200 for i in range(300)], f"{own[:3]}")
    expect("".join(own[300:-1]) == "long " + "x" * 50000 + " end" and len(own) == 305, f"{len(own)} lines")
    expect(own[-1] == "without end", own[-1][:80])
    expect("[0] to standard error ?[31m?? \u00e4\n[0]  90 %\n" in err, repr(err))
    code, out, err = run("--workers", 1, "--summary", "-", ("echo", "for people"))
    expect(code == 65 and out == "" and "[0] for people\n" in err, f"{code}\n{out}\n{err}")


def test_a_command_that_cannot_run():
    with tempfile.TemporaryDirectory() as folder:
        plain, wrong = os.path.join(folder, "plain"), os.path.join(folder, "wrong")
        for path, text in ((plain, "x"), (wrong, "#!/nonexistent/python\n")):
            with open(path, "w", encoding="ascii") as file:
                file.write(text)
        os.chmod(wrong, stat.S_IRWXU)
        for command, code, words in (((), 64, "a command must follow"), (("",), 64, "is empty"),
                                     (("nosuchprogram",), 78, "no such program in PATH"), ((folder,), 78, "Is a directory"),
                                     ((plain,), 78, "may not be executed") if os.getuid() else (("/nonexistent/x",), 78, "No such file"),
                                     ((wrong,), 78, "what its first line names")):
            found, out, err = run("--state-dir", os.path.join(folder, "job"), command)
            expect(found == code and words in err, f"{command}: {found}\n{out}\n{err}")
            expect(command == (wrong,) or (len(err.splitlines()) == 1 and out == ""), f"{command}: {out}\n{err}")
    for option in ("--model=softmax", "--data=digits", "--batch=8", "--eval-every=5", "--init=x"):
        code, out, err = run(option, ("true",))
        expect(code == 64 and err.startswith(f"gkps run: {option.split('=')[0]}: ") and "command" in err, f"{code} {err}")


def test_a_rank_that_others_miss_is_named():
    tells = "echo '{\"event\":\"progress\",\"step\":1,\"loss\":1}' >&3"
    for script, code, words in ((f"[ $RANK = 1 ] || {{ {tells}; sleep 60; }}", 69, "worker 1 ended with code 0 and never started with gkps"),
                                (f"{tells}; [ $RANK = 1 ] || sleep 60", 69, "worker 1 ended with code 0 but had not left.*gkps_leave"),
                                ("[ $RANK = 1 ] && kill -SEGV $$; sleep 60", 70, "worker 1 was killed by SIGSEGV"),
                                ("[ $RANK = 1 ] && exit 42; sleep 60", 42, "worker 1 ended with code 42; the run ends")):
        for restart in ("never", "always") if code == 69 else ("never",):
            found, out, err = run("--workers", 2, "--servers", 1, "--restart", restart, ("sh", "-c", script))
            expect(found == code and re.search(words, err), f"{script} {restart}: {found}\n{out}\n{err}")


def test_what_another_life_cannot_cure():
    """The program ends with a code of its own, but has told ours; one that tells nothing is tried again."""
    refused = "echo '{\"event\":\"death\",\"code\":77,\"words\":\"of another job\"}' >&3; exit 1"
    code, out, err = run("--workers", 1, "--servers", 1, "--restart", "always", ("sh", "-c", refused))
    expect(code == 77 and "worker 0 ended with code 1: of another job; the run ends" in err and "starts again" not in err, f"{code}\n{err}")
    closed = "echo '{\"event\":\"death\",\"code\":70,\"words\":\"closed before it left\"}' >&3; exit 3"
    code, out, err = run("--workers", 1, "--servers", 1, ("sh", "-c", closed))
    expect(code == 3 and "worker 0 ended with code 3: closed before it left; the run ends" in err, f"{code}\n{err}")
    with tempfile.TemporaryDirectory() as folder:
        again = f"echo life $GKPS_TAKEOVER; [ -e {folder}/x ] || {{ touch {folder}/x; exit 1; }}; read line; echo \"read '$line'\""
        code, out, err = run("--workers", 1, "--servers", 1, "--restart", "always", ("sh", "-c", again))
    expect("worker 0 ended with code 1; starts again" in err and out.count("[0] life") == 2 and "[0] life true" in out, f"{code}\n{out}\n{err}")
    expect("[0] read ''" in out and code == 65, f"standard input is not empty: {code}\n{out}")


TREE = """
import os, signal, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(1000)"
for own in (False, True):
    child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE, start_new_session=own)
    child.stdout.readline()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
os.wait()
print("grown", flush=True)
time.sleep(1000)
"""


def test_the_whole_tree_ends():
    """However the launcher ends, and although the grandchildren are deaf, or in sessions of their own, or orphans."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        job = f"tree-{int(number)}-{os.getpid()}"
        with Run(job, "--job", job, "--workers", 2, "--servers", 1, "--", "sh", "-c", f"{sys.executable} -c \"$TREE\"; true") as tree:
            wait_until(lambda: tree.ended or tree.text().count("grown") == 2, "the tree is grown")
            expect(len(of_job(job)) == 1 + 1 + 2 * 6, f"{len(of_job(job))} processes:\n{tree.text()}")
            tree.process.send_signal(number)
            code = tree.process.wait(30)
            expect(code == {2: 130, 15: 143, 9: -9}[number], f"signal {number}: {code}\n{tree.text()}")
            wait_until(lambda: not of_job(job), f"processes of {job} are left after signal {number}", 30)


def test_a_guard_that_is_killed():
    """What it guarded ends all the same, and counts as killed."""
    for restart in ("never", "always"):
        job = f"guarded-{restart}-{os.getpid()}"
        with Run(job, "--job", job, "--restart", restart, "--workers", 2, "--servers", 1, "--", "sh", "-c",
                 "setsid sleep 1000 & sh -c 'sleep 1000; true'; true") as guarded:
            def guards():
                return [pid for pid in processes_of("gkps\0guard\0") if pid in of_job(job)]
            wait_until(lambda: guarded.ended or len(of_job(job)) == 1 + 1 + 2 * 5, "the trees are there")
            first = guards()
            os.kill(first[0], signal.SIGKILL)
            if restart == "always":
                wait_until(lambda: guarded.ended or (len(guards()) == 2 and first[0] not in guards() and
                                                     len(of_job(job)) == 1 + 1 + 2 * 5), "another life, and nobody of the former")
                guarded.process.send_signal(signal.SIGTERM)
            code = guarded.process.wait(30)
            expect(code == (70 if restart == "never" else 143), f"{code}\n{guarded.text()}")
            expect(re.search(r"worker \d was killed by SIGKILL", guarded.text()), guarded.text())
            wait_until(lambda: not of_job(job), f"processes of {job} are left", 30)


def test_who_outlives_a_program_ends_with_it():
    job = f"outlives-{os.getpid()}"
    start = time.monotonic()
    code, out, err = run("--job", job, "--workers", 1, ("sh", "-c", "sleep 1000 & setsid sleep 1000 & echo begun"))
    expect(code == 65 and "[0] begun" in out, f"{code}\n{out}\n{err}")
    expect(not of_job(job) and time.monotonic() - start < 30, f"left: {of_job(job)}")


def test_a_program_that_trains():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "summary.json")
        expected = train("--servers", 2, "--workers", 2, "--batch", 16, *TRAINING)
        code, out, err = run("--servers", 2, "--workers", 2, *TRAINING, "--summary", path, WORKER)
        expect(code == 0, f"{code}\n{out}\n{err}")
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
    expect(summary["model_hash"] == expected["model_hash"] and summary["steps"] == 30, f"{summary}")
    expect(summary["accuracy"] == expected["accuracy"] and summary["ledger"] == expected["ledger"], f"{summary}")
    expect(summary["config"]["command"] == list(WORKER) and summary["model"] is None and summary["seed"] == 5, f"{summary}")
    expect("step 30/30" in out and "worker 0: fnn3 on digits" in out, out)


def test_state_restart_and_resumption():
    """Rank 1 kills itself once, the launcher is killed later; the model is that of nobody disturbed."""
    expected = train("--servers", 2, "--workers", 2, "--batch", 16, "--steps", 600, "--seed", 5)["model_hash"]
    with tempfile.TemporaryDirectory() as folder:
        state, path = os.path.join(folder, "job"), os.path.join(folder, "summary.json")
        command = WORKER + (folder,)
        job = f"resumed-{os.getpid()}"
        with Run(job, "--job", job, "--state-dir", state, "--workers", 2, "--steps", 600, "--seed", 5, "--", *command) as first:
            first.wait_steps(60)
            victim = next(p for p in of_job(job) if os.readlink(f"/proc/{p}/exe").endswith("gkps-worker"))
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: first.ended or "starts again" in first.text(), "a restart")
            expect(re.search(r"worker \d was killed by SIGKILL.*starts again in .*, from its state directory", first.text()), first.text())
            step = max(first.steps())
            first.wait_steps(step + 60)
            first.process.kill()
            first.process.wait()
        wait_until(lambda: not of_job(job), "processes are left", 30)
        for other, words in ((("true",), "of sh -c.*not of true"), ((), "--density unset, not 0.5")):
            code, out, err = gkps("run", "--state-dir", state, *(("--",) + other if other else ("--density", 0.5)), env=environment())
            expect(code == 78 and job in err and re.search(words, err), f"{code}\n{out}\n{err}")
        code, out, err = gkps("run", "--state-dir", state, "--summary", path)  # the command is in its state
        expect(code == 0 and "goes on at version" in out, f"{code}\n{out}\n{err}")
        with open(path, encoding="utf-8") as file:
            summary = json.load(file)
        expect(summary["model_hash"] == expected and summary["steps"] == 600, f"{expected}: {summary}")
        expect(summary["config"]["command"] == list(command), f"{summary['config']}")
        code, out, err = run("--state-dir", state, "--fresh", "--workers", 1, ("true",))
        expect(code == 65 and "--fresh: removed" in out, f"{code}\n{out}\n{err}")


def test_faults_on_a_program():
    """Signals of a script reach the program, not its guard alone; message faults go through its link."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "faults.yaml")
        with open(path, "w", encoding="ascii") as file:
            file.write("seed: 1\nrun: {workers: 2, servers: 2, steps: 200, seed: 5}\nfaults:\n"
                       "  - {at: {step: 20}, do: kill, who: worker 1}\n"
                       "  - {at: {step: 60}, do: freeze, who: worker 0, for: 500 ms}\n"
                       "  - {at: {step: 100}, do: restart, who: worker 0}\n"
                       "  - {at: {step: 1}, do: drop, chance: 5 %, who: worker 0, with: server 1, for: 50 steps}\n"
                       "expect:\n  completes: true\n  same-hash: true\n  leaks: none\n  restarts: 2\n  pushes-lost: 0\n")
        code, out, err = run("--faults", path, WORKER)
        expect(code == 0, f"{code}\n{out}\n{err}")


def test_print_config_and_help():
    code, out, err = run("--print-config", "--seed", 3, ("python3", "a b"))
    expect(code == 0 and "seed: 3   # flag" in out and '# command: python3 "a b"' in out, f"{code}\n{out}\n{err}")
    code, out, err = gkps("run", "--help")
    expect(code == 0 and "gkps run [options] [-- COMMAND ...]" in out and "-- python3 train.py" in out, out)


if __name__ == "__main__":
    os.environ["TREE"] = TREE
    main(globals())
