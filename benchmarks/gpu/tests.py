"""Runs the tests that need a GPU, and prints how many passed, as JSON.

python -m benchmarks.gpu.tests
"""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.harness import ROOT

FILE = "tests/test_gpu.py"


class Tally:
    """A plugin of pytest that notes how tests end."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that has passed, or a part of a test that has failed."""
        if report.failed:
            self.failed.append(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def main() -> None:
    tally = Tally()
    # What warns is no mistake there: the versions are not those that the project is tested with.
    status = pytest.main(["-q", "-m", "gpu", "-W", "default", str(ROOT / FILE)], plugins=[tally])
    if tally.failed or status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        sys.exit(f"{len(tally.failed)} failed: {', '.join(tally.failed)}")
    print(json.dumps({"passed": len(tally.passed)}))


if __name__ == "__main__":
    main()
