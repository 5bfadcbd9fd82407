"""A limit of the sandbox that ends tests is named, and is no verdict on something else."""

# ruff: noqa: F811 (fixtures are imported)
from dataclasses import replace
from pathlib import Path

import pytest
from tasks_scenes import BASE, CONFIG, Project, place, project  # noqa: F401 (fixtures)

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import Completed, probe
from hpcjet.tasks import testrun
from hpcjet.tasks.testrun import Place, Stopped
from hpcjet.tasks.verdict import Verdict
from hpcjet.tasks.verify import Verification, verify

pytestmark = pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")
WRITE = "open('big', 'wb').write(b'x' * 40_000_000); time.sleep(250)"
MANY = "os.mkdir('many'); [open(f'many/{n}', 'w').close() for n in range(3000)]; time.sleep(250)"
FORK = "[subprocess.Popen(['sleep', '250']) for _ in range(25)]; time.sleep(250)"


def judge(project: Project, place: Path, code: str, config: SandboxConfig) -> Verification:
    task = project.task()
    patch = project.patch({"calc.py": f"import os, subprocess, time\n{code}\n{BASE['calc.py']}"})
    return verify(
        task, project.store.prepare(task), patch,
        sandbox_config=config, scratch=place / "verify", timeout_s=300, cpus=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "limit", "key"),
    [
        (WRITE, {"disk_gb": 0.02}, "sandbox.disk_gb=0.02"),
        (MANY, {"disk_files": 1000}, "sandbox.disk_files=1000"),
        (FORK, {"processes": 16}, "sandbox.processes=16"),
    ],
    ids=["disk", "files", "processes"],
)
def test_tests_that_hit_a_limit_fail_and_name_it(
    project: Project, place: Path, code: str, limit: dict[str, float], key: str
) -> None:
    found = judge(project, place, code, replace(CONFIG, **limit))  # type: ignore[arg-type]
    assert (found.verdict, found.failure) == (Verdict.failed, ""), found
    assert found.detail.startswith("the tests ") and key in found.detail


def test_a_file_that_is_too_large_is_told(project: Project, place: Path) -> None:
    # Python ignores the signal of this limit; another program dies of it
    code = "os.execvp('bash', ['bash', '-c', 'trap - XFSZ; exec dd if=/dev/zero of=big bs=1 count=1 seek=3G'])"
    found = judge(project, place, f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n{code}", CONFIG)
    assert found.verdict is Verdict.failed
    assert found.detail.endswith("(the test command ended with 153): it wrote a file that is larger than one may be")


def at_limit(limit: str, **more: bool) -> Completed:
    return Completed(returncode=137, output=b"", seconds=3.0, limit=limit, **more)


@pytest.mark.parametrize(
    ("done", "verdict", "text"),
    [
        (at_limit("wall", timed_out=True), Verdict.tests_timeout, "the life of the sandbox was over"),
        (at_limit("", timed_out=True), Verdict.tests_timeout, "took more than 3 s"),
        (at_limit("cpu"), Verdict.failed, "CPU time"),
    ],
    ids=["wall", "time", "cpu"],
)
def test_other_limits_are_named_too(place: Path, done: Completed, verdict: Verdict, text: str) -> None:
    where = Place(sandbox=CONFIG, scratch=place, timeout_s=1, cpus=1)
    with pytest.raises(Stopped, match=text) as caught:
        testrun._check_limits(done, where, what="the tests")
    assert caught.value.verdict is verdict


def test_a_full_disk_is_no_fault_of_the_patch(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testrun, "_is_full", lambda _: True)
    where = Place(sandbox=CONFIG, scratch=place, timeout_s=1, cpus=1)
    with pytest.raises(Stopped) as caught:
        testrun._check_limits(at_limit("disk"), where, what="the tests")
    assert (caught.value.verdict, caught.value.failure) == (Verdict.infrastructure, "disk_full")
