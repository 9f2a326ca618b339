#!/usr/bin/env python3
"""Goal: the image and the compose file do what docs/containers.md says, with kills and a move to another address.
Method: build and run them for real; see the job end with the same model hash as one that nobody disturbed.

tests/containers.sh installs what this needs and calls it.  Nothing is pulled, and all traffic of the job stays in the
network that docker-compose makes for it."""
import os
import subprocess
import sys
import tempfile
import traceback

from engine import BASE, Engine, Failure, Inventory, docker, end_on_signals, expect, provide_base, say, wait_until
from job import SERVICES, Job

IMAGE = f"gkps-test-{os.getpid()}"
STEPS = 4000
IMAGE_BYTES_MAX = 250 << 20
PLACEHOLDER = f"gkps-test-{os.getpid()}-placeholder"


def in_image(*args):
    """What a command says in a container of its own; the engine's warnings are none of it."""
    return docker("run", "--rm", "--pull=never", *args, stderr=subprocess.PIPE)


class Test:
    def __init__(self):
        self.calm = Job(f"gkpstest{os.getpid()}calm", IMAGE, STEPS)
        self.rough = Job(f"gkpstest{os.getpid()}rough", IMAGE, STEPS)
        self.machines = []
        self.lans = [f"gkps-test-{os.getpid()}-lan{number}" for number in (0, 1)]
        self.build_log = ""
        self.hashes = None

    def test_image_builds(self):
        self.build_log = self.calm.compose("build", "--force-rm", "server-0", timeout=1800, check=False)
        expect(Inventory.has(IMAGE), self.build_log[-4000:])

    def test_image_is_small_and_not_root(self):
        size = int(docker("image", "inspect", "-f", "{{.Size}}", IMAGE))
        say(f"the image has {size >> 20} MiB")
        expect(size <= IMAGE_BYTES_MAX, f"{size} bytes; a runtime image has at most {IMAGE_BYTES_MAX}")
        user = in_image(IMAGE, "id", "-u").strip()
        expect(user.isdigit() and int(user) > 0, f"it runs as user '{user}'")
        tools = in_image(IMAGE, "sh", "-c", "command -v gcc cc cmake ninja python3 || true").strip()
        expect(not tools, f"of the build, in the runtime image: {tools}")

    def test_whole_run_in_one_container(self):
        """No network but loopback, nothing to write to, no capability."""
        out = in_image("--read-only", "--network=none", "--cap-drop=ALL", IMAGE, "gkps", "run", "--steps=50")
        expect("model hash" in out, out)

    def test_undisturbed(self):
        job = self.calm
        expect(Inventory.has(IMAGE), "there is no image")
        with tempfile.TemporaryFile(mode="w+") as log:
            up = job.start_attached(log)
            try:
                for service in SERVICES:
                    wait_until(lambda at=service: job.health(at) == "healthy", f"{service} is healthy")
                self.see_rights(job)
                up.wait(300)
            except (Failure, subprocess.TimeoutExpired) as failure:
                log.seek(0)
                raise Failure(f"{failure}\n{log.read()[-6000:]}") from failure
            finally:
                up.kill()
                up.wait()
        # Finished is finished: the engine restarts what it restarts at once.
        expect(all(end == (0, 0) for end in job.ends().values()), f"exit code, restarts: {job.ends()}")
        self.hashes = job.hashes()
        expect([version for version, _ in self.hashes] == [str(STEPS)] * 2, self.hashes)

    @staticmethod
    def see_rights(job):
        """As the kernel has them, of every daemon."""
        for service in SERVICES:
            with open(f"/proc/{job.pid(service)}/status", encoding="utf-8") as file:
                status = dict(line.rstrip("\n").split(":\t", 1) for line in file)
            expect("0" not in status["Uid"].split() and "0" not in status["Gid"].split(), f"{service} is root: {status}")
            expect(int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0, f"{service} has capabilities: {status}")
            expect(status["NoNewPrivs"] == "1", f"{service} can gain rights")
            expect(job.inspect(service)["HostConfig"]["ReadonlyRootfs"], f"{service} can write to its root")

    def test_disturbed_ends_with_the_same_model(self):
        job = self.rough
        expect(self.hashes, "there is nothing to compare with")
        job.start()
        version = job.wait_version(200, "at the start")
        for victim in ("worker-2", "server-1"):
            say(f"version {version}: signal 9 for {victim}")
            job.kill(victim)
            version = job.wait_version(version + 200, f"after the kill of {victim}")
        self.move(job, "server-1")
        version = job.wait_version(version + 200, "after the move of server-1")
        say(f"version {version}: they found it; all containers are removed and made again, as by an upgrade")
        restarts = job.ends()
        job.compose("down")
        job.start()
        version = job.wait_version(version + 200, "after all containers were made again")
        expect(version < STEPS, "the job was over too early to have seen it all")
        job.wait_end()
        expect(all(code == 0 for code, _ in job.ends().values()), f"exit code, restarts: {job.ends()}\n{job.last_words()}")
        expect(restarts["worker-2"][1] == 1, f"exit code, restarts: {restarts}")
        expect(job.hashes() == self.hashes, f"{job.hashes()} and undisturbed {self.hashes}")

    @staticmethod
    def move(job, service):
        """Its container is removed and made again, while another one holds its address."""
        old = job.address(service)
        job.compose("stop", service)
        job.compose("rm", "-f", service)
        try:
            docker("run", "--pull=never", "-d", "--name", PLACEHOLDER, "--network", job.network(), IMAGE, "sleep", "600")
            job.compose("up", "-d", "--no-deps", service)
            new = job.address(service)
        finally:
            docker("rm", "-f", PLACEHOLDER, check=False)
        say(f"{service} moved from {old} to {new}")
        expect(new and new != old, f"{service} has its address {old} again: nothing was tested")

    def test_several_machines(self):
        """Two projects stand for them: networks of their own, and published ports the only way from one to the other."""
        expect(self.hashes, "there is nothing to compare with")
        hosts = []
        for name in self.lans:
            docker("network", "create", name)
            hosts.append(docker("network", "inspect", "-f", "{{(index .IPAM.Config 0).Gateway}}", name).strip())
        addresses = ",".join(f"tcp://{host}:5600" for host in hosts)
        with tempfile.TemporaryDirectory() as folder:
            for number, host in enumerate(hosts):
                file = os.path.join(folder, f"machine-{number}.yaml")
                with open(file, "w", encoding="utf-8") as text:
                    text.write(f'services:\n  server-{number}:\n    ports: ["{host}:5600:5600"]\n')
                services = (f"server-{number}", f"worker-{2 * number}", f"worker-{2 * number + 1}")
                self.machines.append(Job(f"gkpstest{os.getpid()}machine{number}", IMAGE, STEPS, services, [file], addresses))
            for job in self.machines:
                job.start()
            for job in self.machines:
                job.wait_end()
                expect(all(end == (0, 0) for end in job.ends().values()), f"{job.ends()}\n{job.last_words()}")
            found = [shard for job in self.machines for shard in job.hashes()]
            expect(found == self.hashes, f"{found} and on one machine {self.hashes}")

    def remove(self, inventory):
        for job in (self.calm, self.rough, *self.machines):
            job.remove()
        for name in self.lans:
            docker("network", "rm", name, check=False)
        docker("rm", "-f", PLACEHOLDER, check=False)
        inventory.remove_images([IMAGE] if inventory.had_base else [IMAGE, BASE], self.build_log)
        inventory.expect_same()


def run(name, function, *args):
    """One test: its name, and what it said when it failed."""
    try:
        function(*args)
    except Exception:  # a fault of the test is a failure, too, and what it made has to go
        traceback.print_exc(file=sys.stdout)
        say(f"{name}: FAILED")
        return False
    say(f"{name}: ok")
    return True


def main():
    end_on_signals()
    engine, test, results, inventory = Engine(), Test(), [], None
    try:
        engine.start()
        inventory = Inventory()
        provide_base()
        for name in [name for name in vars(Test) if name.startswith("test_")]:
            results.append(run(name[5:], getattr(test, name)))
    except Failure as failure:
        print(failure)
        results.append(False)
    finally:
        if inventory:
            results.append(run("nothing of the job is left", test.remove, inventory))
        results.append(run("nothing of the engine is left", engine.stop))
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
