"""Goal: what the pages say about the examples is so.
Method: the diff in docs/pytorch.md is made anew from the two scripts; code blocks and examples are compiled; every setting
of the library is in the table of docs/library.md."""
import ast
import difflib
import glob
import os
import re
import unittest

from support import PACKAGE, ROOT


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.M | re.S)


class Pages(unittest.TestCase):
    def test_diff(self):
        plain, ours = read("examples", "mnist_torch_plain.py"), read("examples", "mnist_torch.py")
        lines = [line for line in difflib.unified_diff(plain.splitlines(), ours.splitlines(), n=0, lineterm="")
                 if line[0] in "+-" and not line.startswith(("+++", "---"))]
        self.assertEqual(blocks(read("docs", "pytorch.md"), "diff"), ["\n".join(lines) + "\n"])
        self.assertLessEqual(sum(line[0] == "+" for line in lines), 5)

    def test_code(self):
        for page in ("pytorch.md", "library.md"):
            found = blocks(read("docs", page), "python")
            self.assertTrue(found, page)
            for block in found:
                ast.parse(block)
        for path in glob.glob(os.path.join(ROOT, "examples", "*.py")) + glob.glob(os.path.join(PACKAGE, "gkps", "**", "*.py")):
            with open(path, encoding="utf-8") as file:
                ast.parse(file.read(), path, feature_version=(3, 9))

    def test_links(self):
        for page in ("pytorch.md", "library.md"):
            for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", read("docs", page)):
                self.assertTrue(os.path.exists(os.path.join(ROOT, "docs", target)), f"{page}: {target}")

    def test_settings(self):
        rows = read("worker", "lib", "settings_rows.inc")
        names = re.findall(r'^    \{"([a-z0-9-]+)"', rows, re.M)
        self.assertIn("density", names)
        table = re.search(r"^## Settings\n(.*?)^## ", read("docs", "library.md"), re.M | re.S).group(1)
        told = set(re.findall(r"`([a-z0-9-]+)`", "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))))
        own = {"launcher-fd", "allow-faults"}  # set by gkps run alone
        self.assertEqual(set(names) - own, told - {"cpu", "log-format", "log-level"})


if __name__ == "__main__":
    unittest.main()
