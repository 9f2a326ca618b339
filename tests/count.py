#!/usr/bin/env python3
"""Print "PASSED FAILED" of a JUnit file that ctest wrote.  Everything that was not run counts as failed."""
import sys
import xml.etree.ElementTree

suite = xml.etree.ElementTree.parse(sys.argv[1]).getroot()
cases = suite.findall("testcase")
passed = sum(1 for case in cases if case.get("status") == "run")
failed = len(cases) - passed
for case in cases:
    if case.get("status") != "run":
        print(f"failed: {case.get('name')} ({case.get('status')})", file=sys.stderr)
print(passed, failed if cases else 1)
