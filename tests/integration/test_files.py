"""Goal: with too few file descriptors a program ends with code 75 and one line of words, or does its work; it never aborts.
Method: each program under limits from almost none to enough; the soft limit alone is no reason to end."""
import resource
import subprocess

from cluster import environment, expect, free_addresses, main, program

COMMANDS = (
    ("gkps-server", "--deadline", "1"),
    ("gkps-worker", "--deadline", "1"),
    ("gkps", "run", "--steps", "2", "--workers", "2", "--quiet"),
)


def run(limits, name, *args):
    done = subprocess.run([program(name), *args], capture_output=True, text=True, timeout=120, check=False,
                          stdin=subprocess.DEVNULL, env=environment(),
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))
    return done.returncode, (done.stdout + done.stderr).strip()


def test_few_files():
    address, = free_addresses(1)
    for name, *args in COMMANDS:
        if name == "gkps-worker":
            args += ["--servers", address]
        codes = []
        for files in (5, 12, 20, 32, 44, 52, 64, 100):
            code, text = run((files, files), name, *args)
            codes.append(code)
            expect(code in (0, 69, 75), f"{name} with {files} files: exit code {code}\n{text}")
            if code == 75:
                expect("ulimit" in text.splitlines()[-1], f"{name} with {files} files: {text}")
        expect(codes[0] == 75 and codes[-1] != 75, f"{name}: {codes}")


def test_low_soft_limit():
    code, text = run((20, 200), "gkps", "run", "--steps", "2", "--workers", "2", "--quiet")
    expect(code == 0, f"exit code {code}\n{text}")


main(globals())
