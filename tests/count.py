#!/usr/bin/env python3
"""Print "PASSED FAILED" of a JUnit file that ctest wrote, and write the names of those that failed to a second file, a
line each.  Everything that was not run counts as failed."""
import sys
import xml.etree.ElementTree

with open(sys.argv[2], "w", encoding="utf-8") as names:
    try:
        cases = xml.etree.ElementTree.parse(sys.argv[1]).getroot().findall("testcase")
    except (OSError, xml.etree.ElementTree.ParseError) as error:
        cases = []
        print(f"ctest left no results ({error})", file=names)
    failed = [case for case in cases if case.get("status") != "run"]
    for case in failed:
        print(f"{case.get('name')} ({case.get('status')})", file=names)
print(len(cases) - len(failed), len(failed) if cases else 1)
