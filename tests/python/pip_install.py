"""Goal: pip installs the package from the tree, and what it installs is whole.
Method: into a folder, without a network; a Python that knows that folder alone loads library and type hints."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import PACKAGE, clean_environment


class Install(unittest.TestCase):
    def test_install(self):
        with tempfile.TemporaryDirectory() as folder:
            source, target = os.path.join(folder, "source"), os.path.join(folder, "installed")
            shutil.copytree(PACKAGE, source)  # building leaves files beside the sources
            pip = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
                                  "--target", target, source], capture_output=True, text=True, check=False)
            self.assertEqual(pip.returncode, 0, pip.stderr)
            code = "import gkps, os; print(gkps.__file__); print(gkps.version(), gkps.__version__)"
            env = {**clean_environment(GKPS_LIBRARY=os.environ["GKPS_TEST_LIBRARY"]), "PYTHONPATH": target}
            out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd=folder).stdout
            file, versions = out.splitlines()
            self.assertEqual(file, os.path.join(target, "gkps", "__init__.py"))
            self.assertEqual(*versions.split())
            for name in ("py.typed", os.path.join("torch", "_optimizer.py")):
                self.assertTrue(os.path.exists(os.path.join(target, "gkps", name)), name)


if __name__ == "__main__":
    unittest.main()
