"""An attempt keeps its tree from the preparation to the verdict, and tells a node without room from a bad task."""

# ruff: noqa: F811 (fixtures are imported)
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tasks_scenes import CONFIG, Project, place, project  # noqa: F401 (fixtures)

from hpcjet.sandbox import probe
from hpcjet.swe import attempt as attempt_module
from hpcjet.swe.attempt import Attempter, AttemptSettings, Job
from hpcjet.swe.scaffold import ScaffoldSettings
from hpcjet.tasks import home
from hpcjet.tasks.clean import Cleaned, clean
from hpcjet.tasks.room import Keep
from hpcjet.tasks.verdict import Verdict
from hpcjet.tasks.verify import Verification, verify

pytestmark = pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")
ALL = Keep(size_bytes=0, age_s=None, free_bytes=0)


def settings(project: Project, place: Path) -> AttemptSettings:
    return AttemptSettings(
        run_dir=place / "run", repos=project.repos, trees=place / "trees", scratch=place, sandbox=CONFIG,
        scaffold="reference", scaffold_settings=ScaffoldSettings(), agent_timeout_s=300,
        test_timeout_s=300, build_timeout_s=300, cpus=1,
    )  # fmt: skip


def test_the_tree_is_in_use_until_the_verdict(project: Project, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Cleaned] = []

    def clean_and_verify(*arguments: Any, **more: Any) -> Verification:
        seen.append(clean(place / "trees", ALL))
        return verify(*arguments, **more)

    monkeypatch.setattr(attempt_module, "verify", clean_and_verify)
    record = Attempter(settings(project, place)).make(Job(project.task(), 1))
    assert record.verdict is Verdict.resolved, record
    assert (seen[0].layers, len(seen[0].in_use)) == ([], 1)
    assert len(clean(place / "trees", ALL).layers) == 1


@pytest.mark.parametrize("where", ["named", "chosen"])
def test_a_node_without_room_is_no_bad_task(
    project: Project, place: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("HPCJET_CACHE", str(place / "cache"))
    monkeypatch.setattr(home, "DISKS", ())
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    full = replace(settings(project, place), keep=Keep(free_bytes=10**18))
    attempter = Attempter(full if where == "named" else replace(full, trees=None))
    record = attempter.make(Job(project.task(), 1))
    assert (record.verdict, record.failure) == (Verdict.infrastructure, "disk_full"), record
    assert "needed" in record.detail and "exp.trees" in record.detail
