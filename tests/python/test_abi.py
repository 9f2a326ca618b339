"""Goal: the ctypes side of the package is the header, to the byte.
Method: a C program prints size and offset of everything that Python knows; functions and constants are read from the
header."""
import os
import re
import subprocess
import tempfile
import unittest

from support import PACKAGE, ROOT

from gkps import _abi, _errors, _version

HEADER = os.path.join(ROOT, "worker", "include", "gkps.h")


def header():
    with open(HEADER, encoding="utf-8") as file:
        return re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)


def from_compiler(lines):
    """What a C program with these printf lines prints."""
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "abi.c"), os.path.join(folder, "abi")
        with open(source, "w", encoding="utf-8") as file:
            file.write('#include "worker/include/gkps.h"\n#include <stdio.h>\nint main(void)\n{\n')
            file.writelines(lines)
            file.write("    return 0;\n}\n")
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Werror", "-I", ROOT, "-o", program, source], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()


class Layout(unittest.TestCase):
    def test_structs(self):
        self.assertEqual({name for name in re.findall(r"^struct (gkps_\w+) \{", header(), re.M)}, set(_abi.STRUCTS))
        lines, expected, names = [], [], []
        for struct, kind in _abi.STRUCTS.items():
            lines.append(f'    printf("%zu\\n", sizeof(struct {struct}));\n')
            names.append(struct)
            expected.append(_abi.ctypes.sizeof(kind))
            for field, _ in kind._fields_:
                member = f"((struct {struct} *)0)->{field}"
                lines.append(f'    printf("%zu\\n%zu\\n", offsetof(struct {struct}, {field}), sizeof({member}));\n')
                names += [f"{struct}.{field} offset", f"{struct}.{field} size"]
                expected += [getattr(kind, field).offset, getattr(kind, field).size]
        self.assertEqual(list(zip(names, map(int, from_compiler(lines)))), list(zip(names, expected)))

    def test_fields_have_the_names_of_the_header(self):
        for struct, kind in _abi.STRUCTS.items():
            body = re.search(r"struct %s \{(.*?)^\};" % struct, header(), re.S | re.M).group(1)
            names = []
            for line in body.split(";"):
                function = re.search(r"\(\*(\w+)\)", line)
                names += [function.group(1)] if function else re.findall(r"(\w+)\s*(?:,|$)", line.strip())
            self.assertEqual(names, [name for name, _ in kind._fields_], struct)

    def test_constants(self):
        names = re.findall(r"\b(GKPS_(?!API\b|H\b)[A-Z_]+) ?[=,]", header())
        known = {name for name in dir(_abi) if re.fullmatch(r"[A-Z_]+", name) and isinstance(getattr(_abi, name), int)}
        levels = {"GKPS_LOG_DEBUG", "GKPS_LOG_INFO", "GKPS_LOG_WARN", "GKPS_LOG_ERROR"}
        wanted = [name for name in dict.fromkeys(names) if name not in levels]
        self.assertEqual({name[5:] for name in wanted}, known)
        values = from_compiler([f'    printf("%d\\n", (int){name});\n' for name in wanted])
        self.assertEqual({name: int(value) for name, value in zip(wanted, values)},
                         {name: getattr(_abi, name[5:]) for name in wanted})

    def test_functions(self):
        declared = {name: [] if inside.strip() == "void" else inside.split(",")
                    for name, inside in re.findall(r"GKPS_API [\w ]+?\*?(gkps_\w+)\(([^)]*)\);", header())}
        self.assertEqual(set(declared), set(_abi._PROTOTYPES))
        for name, parameters in declared.items():
            self.assertEqual(len(parameters), len(_abi._PROTOTYPES[name][1]), name)

    def test_every_code_has_an_exception(self):
        codes = {getattr(_abi, name) for name in dir(_abi) if name.startswith("E_")}
        self.assertEqual(codes, set(_errors._CLASSES))
        with open(HEADER, encoding="utf-8") as file:
            text = file.read()
        for kind in _errors._CLASSES.values():
            name = next(name for name in dir(_abi) if name.startswith("E_") and getattr(_abi, name) == kind.code)
            exit_code = re.search(r"GKPS_%s = \d+,[^*]*/\*.*?(\d\d) \*/" % name, text, re.S).group(1)
            self.assertEqual(int(exit_code), kind.default_exit_code, name)

    def test_version_is_that_of_the_project(self):
        with open(os.path.join(ROOT, "CMakeLists.txt"), encoding="utf-8") as file:
            version = re.search(r"project\(gkps VERSION ([\d.]+)", file.read()).group(1)
        self.assertEqual(version, _version.__version__)
        self.assertTrue(os.path.exists(os.path.join(PACKAGE, "gkps", "py.typed")))


if __name__ == "__main__":
    unittest.main()
