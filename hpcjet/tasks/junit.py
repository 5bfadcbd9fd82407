"""Test results from junit XML, as regrtest and pytest write it. What a test prints is never looked at."""

import re
from collections.abc import Mapping
from enum import Enum
from xml.parsers import expat

MAX_BYTES = 64_000_000
MAX_TESTS = 500_000
UNNAMED = "(unnamed)"
"""The id of test cases that have none: regrtest writes a bare <testcase/> for a test in which a subtest failed."""


class Outcome(str, Enum):
    """How one test ended; for a test that is reported more than once, the worst."""

    passed = "passed"
    skipped = "skipped"
    failed = "failed"
    error = "error"


_BADNESS = {Outcome.passed: 0, Outcome.skipped: 1, Outcome.failed: 2, Outcome.error: 3}


class ReportError(Exception):
    """A report cannot be used. `kind`: absent, empty, too_large, malformed, hostile."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def parse_junit(data: bytes) -> dict[str, Outcome]:
    """Outcome of each test by its id: `classname::name` (pytest), or `name` where there is no class name (regrtest).

    An expected failure counts as passed, as test runners count it. Raises ReportError.
    """
    if not data.strip():
        raise ReportError("empty", "the test report is empty")
    if len(data) > MAX_BYTES:
        raise ReportError("too_large", f"the test report has {len(data)} bytes; {MAX_BYTES} are allowed")
    reader = _Reader()
    try:
        reader.feed(data)
    except (expat.ExpatError, LookupError, ValueError) as error:  # the last two: an unknown encoding
        raise ReportError("malformed", f"the test report is broken XML: {error}") from None
    return reader.outcomes


def outcome_of(outcomes: Mapping[str, Outcome], test: str) -> Outcome | None:
    """The outcome of a test given by its report id or by its pytest node id; None if it is not in the report."""
    return outcomes.get(test) or outcomes.get(_report_id(test))


def _report_id(node_id: str) -> str:
    """What pytest makes of a node id in a report: of a/test_b.py::TestX::test_y[1/2] a.test_b.TestX::test_y[1/2]."""
    address, bracket, parameters = node_id.partition("[")
    names = address.split("::")
    names[0] = re.sub(r"\.py$", "", names[0].replace("/", "."))
    return "::".join(filter(None, (".".join(names[:-1]), names[-1] + bracket + parameters)))


class _Reader:
    """Reads in a stream; a document type, with which all entity attacks begin, is refused."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._path: list[str] = []
        self._test = ""
        self._outcome = Outcome.passed
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.StartDoctypeDeclHandler = self._refuse

    def feed(self, data: bytes) -> None:
        self._parser.Parse(data, True)

    def _refuse(self, *_: object) -> None:
        raise ReportError("hostile", "the test report declares a document type, which no test runner writes")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._path.append(tag)
        if len(self._path) > 100:
            raise ReportError("hostile", "the test report is nested more than 100 deep")
        if tag == "testcase":
            self._test = (
                "::".join(filter(None, (attributes.get("classname", ""), attributes.get("name", "")))) or UNNAMED
            )
            self._outcome = Outcome.failed if self._test == UNNAMED else _of_attributes(attributes)
        elif self._path[-2:-1] == ["testcase"]:
            self._worsen(_of_child(tag, attributes))

    def _end(self, tag: str) -> None:
        self._path.pop()
        if tag == "testcase":
            self._worsen(self.outcomes.get(self._test, Outcome.passed))
            self.outcomes[self._test] = self._outcome
            if len(self.outcomes) > MAX_TESTS:
                raise ReportError("too_large", f"the test report has more than {MAX_TESTS} tests")

    def _worsen(self, other: Outcome) -> None:
        self._outcome = max(self._outcome, other, key=_BADNESS.__getitem__)


def _of_attributes(attributes: dict[str, str]) -> Outcome:
    not_run = attributes.get("status") == "notrun" or attributes.get("result") == "skipped"
    return Outcome.skipped if not_run else Outcome.passed


def _of_child(tag: str, attributes: dict[str, str]) -> Outcome:
    if tag == "skipped":
        return Outcome.passed if attributes.get("type") == "pytest.xfail" else Outcome.skipped
    # <outcome> is how regrtest tells of an unexpected success
    return {"failure": Outcome.failed, "outcome": Outcome.failed, "error": Outcome.error}.get(tag, Outcome.passed)
