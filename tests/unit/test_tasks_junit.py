"""Test reports: as regrtest and pytest write them, and as nobody should."""

import subprocess
import sys
from pathlib import Path

import pytest

from hpcjet.tasks.junit import MAX_BYTES, UNNAMED, Outcome, ReportError, outcome_of, parse_junit


def suite(*cases: str) -> bytes:
    return f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>".encode()


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        ('<testcase name="t" status="run" result="completed" time="0.1"/>', "passed"),
        ('<testcase name="t"><failure type="E" message="m">text</failure></testcase>', "failed"),
        ('<testcase name="t"><error type="E">text</error></testcase>', "error"),
        ('<testcase name="t"><skipped>why</skipped></testcase>', "skipped"),
        ('<testcase name="t" status="notrun"/>', "skipped"),
        ('<testcase name="t"><skipped type="pytest.xfail" message="known"/></testcase>', "passed"),
        ('<testcase name="t"><outcome>UNEXPECTED_SUCCESS</outcome></testcase>', "failed"),
        ('<testcase name="t"><output type="E" message="m">expected failure</output></testcase>', "passed"),
        ('<testcase name="t"><system-out>&lt;failure/&gt;</system-out></testcase>', "passed"),
        ('<testcase name="t"><properties><failure/></properties></testcase>', "passed"),
        ('<testcase name="t"/><testcase name="t"><failure/></testcase>', "failed"),
        ('<testcase name="t"><failure/></testcase><testcase name="t"/>', "failed"),
        ('<testcase name="t"><failure/><error/><skipped/></testcase>', "error"),
        ('<testcase name="t"/><testcase name="t"><skipped/></testcase>', "skipped"),
    ],
    ids=[
        *("passed", "failed", "error", "skipped", "not-run", "expected-failure-pytest", "unexpected-success"),
        *("expected-failure-regrtest", "printed-failure", "failure-elsewhere", "fails-at-second-time"),
        *("passes-at-second-time", "several-ends", "skipped-at-second-time"),
    ],
)
def test_outcomes(case: str, outcome: str) -> None:
    assert parse_junit(suite(case)) == {"t": Outcome(outcome)}


def test_names_are_kept_as_they_are() -> None:
    names = ["test a b", "x[1/2]", "ünï", "a&lt;b&gt;&amp;", "", " "]
    found = parse_junit(suite(*(f'<testcase classname="c.D" name="{name}"/>' for name in names)))
    assert list(found) == ["c.D::test a b", "c.D::x[1/2]", "c.D::ünï", "c.D::a<b>&", "c.D", "c.D:: "]


def test_a_case_without_a_name_has_failed() -> None:
    """How regrtest reports a test with a failed subtest."""
    assert parse_junit(suite('<testcase name="t"/>', "<testcase />")) == {"t": Outcome.passed, UNNAMED: Outcome.failed}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"<testsuites><testsuite><testcase name='t'/>", "malformed"),
        (b"== Tests result: SUCCESS ==", "malformed"),
        (b"\x00\xff\xfe", "malformed"),
        (suite("<testcase name='t'>\x1b[31m</testcase>"), "malformed"),
        (b'<?xml version="1.0" encoding="no-such"?><a/>', "malformed"),
        (b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>', "hostile"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "hostile"),
        (b"<a>" * 200 + b"</a>" * 200, "hostile"),
        (b"x" * (MAX_BYTES + 1), "too_large"),
    ],
    ids=[
        *("empty", "blank", "truncated", "no-xml", "binary", "control-character", "unknown-encoding"),
        *("entities", "external", "deep", "too-large"),
    ],
)
def test_unusable_reports(data: bytes, kind: str) -> None:
    with pytest.raises(ReportError) as caught:
        parse_junit(data)
    assert caught.value.kind == kind


def test_entity_bomb_is_refused_at_once() -> None:
    levels = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 30))
    with pytest.raises(ReportError, match="document type"):
        parse_junit(f'<!DOCTYPE a [<!ENTITY l0 "x">{levels}]><a>&l29;</a>'.encode())


TESTS = """
import unittest, pytest

class TestX:
    @pytest.mark.parametrize("n", ["1/2", "a[b]", "x::y", "p.py"])
    def test_y(self, n): assert n != "x::y"

def test_plain(): pass
def test_skipped(): pytest.skip("no")
@pytest.mark.xfail
def test_known(): assert False
@pytest.mark.xfail(strict=True)
def test_better_than_known(): pass
@pytest.fixture
def broken():
    yield
    raise ValueError
def test_teardown(broken): pass
"""


def test_node_ids_of_a_real_pytest_report(tmp_path: Path) -> None:
    (tmp_path / "some/deep").mkdir(parents=True)
    (tmp_path / "some/deep/test_a.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=r.xml", "some"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    outcomes = parse_junit((tmp_path / "r.xml").read_bytes())
    wanted = {
        "TestX::test_y[1/2]": "passed",
        "TestX::test_y[a[b]]": "passed",
        "TestX::test_y[x::y]": "failed",
        "TestX::test_y[p.py]": "passed",
        "test_plain": "passed",
        "test_skipped": "skipped",
        "test_known": "passed",
        "test_better_than_known": "failed",
        "test_teardown": "error",
    }
    found = {test: outcome_of(outcomes, f"some/deep/test_a.py::{test}") for test in wanted}
    assert found == wanted
    assert outcome_of(outcomes, "some/deep/test_a.py::test_absent") is None


REGRTEST = """
import unittest
class T(unittest.TestCase):
    def test_pass(self): pass
    def test_fail(self): self.fail("<&>")
    def test_error(self): raise ValueError
    def test_skip(self): self.skipTest("why")
    @unittest.expectedFailure
    def test_known(self): self.fail()
    @unittest.expectedFailure
    def test_better(self): pass
    def test_subtests(self):
        for n in range(3):
            with self.subTest(n=n): self.assertNotEqual(n, 1)
"""


IMPORT_WRITER = """\
import sys
if sys.version_info < (3, 12): import test.support.testresult as m
else: import test.libregrtest.testresult as m
"""


def _python_with_test_suite() -> str:
    """Debian has it in a package of its own, libpython3.11-testsuite."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-W", "ignore", "-c", IMPORT_WRITER], capture_output=True).returncode == 0:
            return python
    raise AssertionError("no Python with its own test suite: apt-get install libpython3.11-testsuite")


def test_real_regrtest_report(tmp_path: Path) -> None:
    """By the result class of regrtest itself."""
    python = _python_with_test_suite()
    (tmp_path / "test_t.py").write_text(REGRTEST)
    script = (
        f"{IMPORT_WRITER}import unittest, xml.etree.ElementTree as ET\n"
        "m.RegressionTestResult.USE_XML = True\n"
        "runner = m.QuietRegressionTestRunner(open('/dev/null', 'w'))\n"
        "result = runner.run(unittest.defaultTestLoader.loadTestsFromName('test_t'))\n"
        "open('r.xml', 'wb').write(ET.tostring(result.get_xml_element()))\n"
    )
    subprocess.run([python, "-W", "ignore", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    assert parse_junit((tmp_path / "r.xml").read_bytes()) == {
        "test_t.T.test_better": "failed",
        "test_t.T.test_error": "error",
        "test_t.T.test_fail": "failed",
        "test_t.T.test_known": "passed",
        "test_t.T.test_pass": "passed",
        "test_t.T.test_skip": "skipped",
        UNNAMED: "failed",
    }
