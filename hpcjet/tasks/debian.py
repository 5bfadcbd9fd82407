"""Tasks from a Debian source package: every patch of its series that changes code and tests together is one."""

import json
import logging
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import TaskError
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks import cpython, sets
from hpcjet.tasks.debsource import SourcePackage, fetch_source, unpack_source
from hpcjet.tasks.git import git
from hpcjet.tasks.jsonl import dump_tasks
from hpcjet.tasks.layer import needs_rebuild
from hpcjet.tasks.series import SeriesCommit, header_date, make_history, statement
from hpcjet.tasks.task import Task

log = logging.getLogger(__name__)

FORMAT = 2
"""Part of the name of a set: changes when tasks are made differently."""
KNOWN = re.compile(r"python3\.\d+")
_DISTRIBUTION_ONLY = re.compile(r"^Forwarded:\s*(no|not-needed)\b", re.MULTILINE | re.IGNORECASE)


def build_debian(
    package: str = "python3.11", *, cache: Path, refresh: bool = False, sources: str | None = None
) -> Path:
    """The folder of the task set of a Debian source package, built if it is not there; then it is the default set.

    `refresh` looks for a newer version although a set is there; `sources` replaces the machine's own apt sources.
    Raises TaskError.
    """
    if not KNOWN.fullmatch(package):
        raise TaskError(
            f"hpcjet knows how to build no package {package!r}, only python3.N such as python3.11; "
            "for another project write a JSONL file with a recipe (docs/tasks.md)"
        )
    folder = sets.sets_dir(cache)
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    if not refresh and (found := _newest_set(folder, package)):
        sets.choose_default(cache, found)
        return found
    draft = Path(tempfile.mkdtemp(prefix=f".{package}-", dir=folder))
    draft.chmod(0o755)
    try:
        target = _build(package, draft, folder, kept=cache / "downloads" / "debian", sources=sources)
    finally:
        remove_tree(draft)
    sets.choose_default(cache, target)
    return target


def _newest_set(folder: Path, package: str) -> Path | None:
    found = [path.parent for path in folder.glob(f"debian-{package}-*-f{FORMAT}/{sets.META}")]
    return max(found, key=lambda path: (path / sets.META).stat().st_mtime) if found else None


def _build(package: str, draft: Path, folder: Path, *, kept: Path, sources: str | None) -> Path:
    begin = time.monotonic()
    (draft / "work").mkdir()
    source = fetch_source(package, kept=kept, work=draft / "work", sources=sources)
    target = folder / f"debian-{package}-{source.version.replace(':', '_').replace('~', '_')}-f{FORMAT}"
    if (target / sets.META).is_file():
        return target
    log.info("fetched %s %s after %.1f s", package, source.version, time.monotonic() - begin)
    make_set(source, draft)
    log.info("made %s after %.1f s", target, time.monotonic() - begin)
    try:
        (draft / "set").rename(target)
    except OSError:  # another builder was first, with the same content
        if not (target / sets.META).is_file():
            raise
    return target


def make_set(source: SourcePackage, work: Path) -> Path:
    """Make `work`/set of a fetched source package: tasks.jsonl, repos/ and meta.json. Raises TaskError."""
    begin = time.monotonic()
    made = work / "set"
    repo = f"debian/{source.name}"
    git_dir = made / sets.REPOS / f"{repo.replace('/', '__')}.git"
    unpack_source(source, work / "source")
    commits = make_history(work / "source", git_dir)
    tasks, left_out = make_tasks(source, commits, git_dir, repo=repo)
    if not tasks:
        raise TaskError(f"no patch of {source.name} {source.version} changes code and tests together")
    dump_tasks(made / sets.TASKS, tasks)
    meta = {
        "format": FORMAT,
        "package": source.name,
        "version": source.version,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(time.monotonic() - begin, 1),
        "tasks": len(tasks),
        "commits": len(commits) + 1,
        "head": commits[-1].commit,
        "applied_with_fuzz": [commit.name for commit in commits if commit.fuzzy],
        "left_out": left_out,
    }
    (made / sets.META).write_text(json.dumps(meta, indent=1) + "\n", "utf-8")
    return made


def make_tasks(
    source: SourcePackage, commits: Sequence[SeriesCommit], git_dir: Path, *, repo: str
) -> tuple[list[Task], dict[str, str]]:
    """The tasks of a series, those first that are ready soonest; and for each other patch why it is none."""
    reasons = {commit.name: reason for commit in commits if (reason := _why_no_task(commit))}
    chosen = [number for number, commit in enumerate(commits) if commit.name not in reasons]
    plan = plan_layers([needs_rebuild(cpython.RECIPE, commit.files) for commit in commits], chosen)
    slugs = _slugs([commit.name for commit in commits])
    tasks = []
    for number in chosen:
        layers = tuple(commits[index].commit if index >= 0 else commits[0].parent for index in plan.layers[number])
        tasks.append(_task(source, commits[number], git_dir, repo=repo, slug=slugs[number], layers=layers))
    cost = {task.instance_id: plan.cost(number) for task, number in zip(tasks, chosen, strict=True)}
    return sorted(tasks, key=lambda task: (cost[task.instance_id], cpython.is_slow(task.tests))), reasons


def _why_no_task(commit: SeriesCommit) -> str:
    tests = [path for path in commit.files if cpython.is_test(path)]
    code = [path for path in commit.files if not cpython.is_test(path) and not cpython.is_documentation(path)]
    if not code or not tests:
        return "no code" if not code else "no tests"
    if _DISTRIBUTION_ONLY.search(commit.header) or not statement(commit.header):
        return "a change for the distribution, or no description"
    return "" if cpython.test_modules(tests) else "no test module"


@dataclass(frozen=True)
class LayerPlan:
    """Which commits make the layers of each task: indices into the series, -1 for the upstream release."""

    layers: dict[int, tuple[int, ...]]
    main: int
    """The first layer that most tasks share."""

    def cost(self, number: int) -> int:
        """How many builds the base of a task needs, where those on the main build come first."""
        builds = len(self.layers[number]) - (self.layers[number][-1] == number - 1 and len(self.layers[number]) > 1)
        return builds if self.layers[number][0] == self.main else 100 + builds


def plan_layers(rebuilds: Sequence[bool], chosen: Sequence[int]) -> LayerPlan:
    """Stack trees so that few builds serve all tasks; pure.

    rebuilds[k]: patch k changes something that is compiled. A task for patch k starts from commit k - 1. Between two
    rebuilds all trees share one build: the commit that begins such a stretch is built, the bases in it are thin layers.
    A stretch is built on top of the one before, save for the one with most tasks, which is built afresh: so most tasks
    wait for one build only. A layer never comes later than the base, for its files would tell the future.
    """
    starts = {number: max([-1, *(index for index in range(number) if rebuilds[index])]) for number in chosen}
    sizes = Counter(starts.values())
    main = max(sizes, key=lambda start: (sizes[start], -start), default=-1)
    stretches = sorted(sizes)
    layers = {}
    for number, start in starts.items():
        bottom = main if start >= main else stretches[0]
        stack = [stretch for stretch in stretches if bottom <= stretch <= start]
        layers[number] = (*stack, number - 1) if stack[-1] != number - 1 else tuple(stack)
    return LayerPlan(layers, main)


def _task(
    source: SourcePackage, commit: SeriesCommit, git_dir: Path, *, repo: str, slug: str, layers: tuple[str, ...]
) -> Task:
    tests = [path for path in commit.files if cpython.is_test(path)]
    rest = [path for path in commit.files if not cpython.is_test(path)]
    return Task(
        instance_id=f"{repo.replace('/', '__')}-{slug}",
        repo=repo,
        base_commit=commit.parent,
        problem_statement=_problem(commit, git_dir),
        patch=_diff(git_dir, commit, rest),
        test_patch=_diff(git_dir, commit, tests),
        version=source.version,
        created_at=header_date(commit.header),
        tests=cpython.test_modules(tests),
        layers=layers,
        recipe=cpython.RECIPE,
    )


def _diff(git_dir: Path, commit: SeriesCommit, paths: list[str]) -> str:
    command = ["--literal-pathspecs", "diff", "--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff"]
    prefixes = ["--src-prefix=a/", "--dst-prefix=b/"]
    diff = git([*command, *prefixes, commit.parent, commit.commit, "--", *paths], git_dir=git_dir)
    return diff.decode("utf-8", "surrogateescape")


def _problem(commit: SeriesCommit, git_dir: Path) -> str:
    """The description of a patch, and its entry for the changelog, which is often the clearer one."""
    text = statement(commit.header)
    for path in commit.files:
        if path.startswith("Misc/NEWS.d/") and path.endswith(".rst"):
            news = git(["show", f"{commit.commit}:{path}"], git_dir=git_dir).decode("utf-8", "replace")
            entry = "\n".join(line for line in news.splitlines() if not line.startswith("..")).strip()
            text = text if " ".join(entry.split()) in " ".join(text.split()) else f"{text}\n\n{entry}"
    return f"{text}\n"


def _slugs(names: Sequence[str]) -> list[str]:
    """Short names for patches that can name folders, each once only."""
    # 0001-3.11-gh-1-title.patch: the number of a mail and the branch tell nothing
    bare = [re.sub(r"^\d{4}-(\d+\.\d+-)?|\.(patch|diff)$", "", name) for name in names]
    plain = [re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:80] for name in bare]
    seen: Counter[str] = Counter()
    result = []
    for slug in plain:
        seen[slug] += 1
        result.append(slug if seen[slug] == 1 else f"{slug}-{seen[slug]}")
    return result
