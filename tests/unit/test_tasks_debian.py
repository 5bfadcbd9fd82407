"""Task sets from Debian source packages: a tiny package in a local archive, fetched by the real apt."""

import gzip
import hashlib
import io
import itertools
import json
import lzma
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path

import pytest

from hpcjet.errors import TaskError
from hpcjet.tasks import cpython
from hpcjet.tasks.debian import build_debian, plan_layers
from hpcjet.tasks.debsource import source_stanzas
from hpcjet.tasks.git import git
from hpcjet.tasks.jsonl import load_tasks
from hpcjet.tasks.layer import needs_rebuild
from hpcjet.tasks.series import header_date, statement
from hpcjet.tasks.task import Task

needs_apt = pytest.mark.skipif(
    not all(map(shutil.which, ("apt-get", "dpkg-source", "patch"))), reason="needs apt-get, dpkg-source and patch"
)
PACKAGE = "python3.99"
UPSTREAM = {
    "Lib/foo.py": b"a = 1\nb = 2\nc = 3\nd = 4\ne = 5\nf = 6\ng = 7\nh = 8\n",
    "Lib/test/test_foo.py": b"assert True\n",
    "Lib/test/test_email/test_bar.py": b"caf\xe9\r\nx\r\n",
    "Modules/foo.c": b"int x;\n",
    ".gitignore": b"*.c\n",
}
MAIL = b"""From 75a875e0df0530b75b1470d797942f90f4a718d3 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Date: Tue, 22 Aug 2023 19:53:19 +0200
Subject: [PATCH] [3.11] gh-1: Fix the
 first thing (#2)

It was wrong.
---
 Lib/foo.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

"""


class Package:
    """A source package that grows patch by patch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = dict(UPSTREAM)
        self.patches: list[tuple[str, bytes]] = []

    def change(self, name: str, changes: dict[str, bytes], header: bytes = b"Description: x\n\n") -> None:
        before, self.tree = self.tree, {**self.tree, **changes}
        sides = {"a": before, "b": self.tree}
        for side, path in itertools.product(sides, set(before) | set(changes)):
            place = self.folder / "diff" / side / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(sides[side][path]) if path in sides[side] else place.unlink(missing_ok=True)
        diff = subprocess.run(["diff", "-ruN", "a", "b"], cwd=self.folder / "diff", capture_output=True, check=False)
        self.patches.append((name, header + diff.stdout))

    def publish(self, version: str, *, archive: Path, complete: bool = True) -> None:
        """Write the files and the index of a flat archive; an incomplete one is only listed."""
        archive.mkdir(exist_ok=True)
        upstream = version.partition("-")[0]
        series = "".join(f"{name}\n" for name, _ in self.patches).encode()
        debian = {
            "debian/control": f"Source: {PACKAGE}\n".encode(),
            "debian/source/format": b"3.0 (quilt)\n",
            "debian/patches/series": b"# comment\n" + series,
            **{f"debian/patches/{name}": text for name, text in self.patches},
        }
        files = {
            f"{PACKAGE}_{upstream}.orig.tar.gz": tar({f"Py/{path}": text for path, text in UPSTREAM.items()}, "gz"),
            f"{PACKAGE}_{version}.debian.tar.xz": tar(debian, "xz"),
        }
        head = f"Format: 3.0 (quilt)\nSource: {PACKAGE}\nBinary: {PACKAGE}\nArchitecture: any\nVersion: {version}\n"
        dsc = f"{PACKAGE}_{version}.dsc"
        files[dsc] = (head + sums(files)).encode()
        entry = head.replace("Source:", "Package:") + f"Directory: .\n{sums(files)}\n"
        with (archive / "Sources").open("a") as index:
            index.write(entry)
        for name, content in files.items():
            if complete or "orig" in name:
                (archive / name).write_bytes(content)


def tar(files: dict[str, bytes], kind: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    # Without the time: all versions name one upstream file, with one checksum.
    return gzip.compress(buffer.getvalue(), mtime=0) if kind == "gz" else lzma.compress(buffer.getvalue())


def sums(files: dict[str, bytes]) -> str:
    text = ""
    for title, name in (("Files", "md5"), ("Checksums-Sha256", "sha256")):
        rows = [f" {hashlib.new(name, data).hexdigest()} {len(data)} {path}\n" for path, data in files.items()]
        text += f"{title}:\n{''.join(rows)}"
    return text


def example(folder: Path) -> Package:
    package = Package(folder)
    foo = UPSTREAM["Lib/foo.py"]
    both = {"Lib/foo.py": foo.replace(b"1", b"10"), "Lib/test/test_foo.py": b"assert 0\n"}
    package.change("debian.diff", both, b"Description: For us\nForwarded: not-needed\n\n")
    news = {"Misc/NEWS.d/next/1.rst": b".. gh: 1\n\nThe first thing is right.\n"}
    both = {"Lib/foo.py": foo.replace(b"1", b"11"), "Lib/test/test_foo.py": b"assert 1\n", **news}
    package.change("0001-3.11-gh-1.patch", both, MAIL)
    package.change("c.patch", {"Modules/foo.c": b"int y;\n"})
    both = {
        "Lib/foo.py": package.tree["Lib/foo.py"] + b"i = 9\n",
        "Lib/test/test_email/test_bar.py": b"caf\xe9\r\ny\r\n",
    }
    package.change("bytes.patch", both)
    both = {"Lib/foo.py": package.tree["Lib/foo.py"].replace(b"= 5", b"= 55"), "Lib/test/test_new.py": b"new\n"}
    package.change("fuzzy.patch", both)
    name, text = package.patches[-1]
    package.patches[-1] = (name, text.replace(b" b = 2\n", b" b = two\n"))
    return package


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    package = example(tmp_path)
    package.publish("3.99.1-1", archive=tmp_path / "archive")
    package.publish("3.99.1-2~x", archive=tmp_path / "archive")
    package.publish("3.99.1-2", archive=tmp_path / "archive", complete=False)
    return tmp_path / "archive"


def sources(archive: Path) -> str:
    return f"Types: deb-src\nURIs: file:{archive}\nSuites: ./\nTrusted: yes\n"


def build(archive: Path, cache: Path, **options: bool) -> Path:
    return build_debian(PACKAGE, cache=cache, sources=sources(archive), **options)


def by_name(folder: Path) -> dict[str, Task]:
    return {task.instance_id.removeprefix(f"debian__{PACKAGE}-"): task for task in load_tasks(folder / "tasks.jsonl")}


@needs_apt
def test_the_newest_version_that_can_be_fetched_becomes_a_task_set(archive: Path, tmp_path: Path) -> None:
    made = build(archive, tmp_path / "cache")
    meta = json.loads((made / "meta.json").read_text())
    assert meta["version"] == "3.99.1-2~x", "-2 is listed, but its files are missing"
    assert meta["applied_with_fuzz"] == ["fuzzy.patch"]
    assert set(meta["left_out"]) == {"debian.diff", "c.patch"}
    tasks = by_name(made)
    assert set(tasks) == {"gh-1", "bytes", "fuzzy"}
    assert tasks["gh-1"].problem_statement == (
        "gh-1: Fix the first thing (#2)\n\nIt was wrong.\n\nThe first thing is right.\n"
    )
    assert tasks["gh-1"].created_at == "2023-08-22T17:53:19Z"
    tests = {"bytes": ("test_email.test_bar",), "fuzzy": ("test_new",), "gh-1": ("test_foo",)}
    assert {name: task.tests for name, task in tasks.items()} == tests
    assert b"-x\r\n+y\r\n" in tasks["bytes"].test_patch_bytes and b" caf\xe9\r\n" in tasks["bytes"].test_patch_bytes


@needs_apt
def test_history_is_linear_reproducible_and_its_tasks_add_up(archive: Path, tmp_path: Path) -> None:
    made = build(archive, tmp_path / "one")
    again = build(archive, tmp_path / "two")
    assert (made / "tasks.jsonl").read_bytes() == (again / "tasks.jsonl").read_bytes()
    git_dir = made / f"repos/debian__{PACKAGE}.git"
    log = git(["log", "--format=%s %p", "main"], git_dir=git_dir).decode().splitlines()
    assert [line.split()[0] for line in log][::-1] == [
        "upstream", "debian.diff", "0001-3.11-gh-1.patch", "c.patch", "bytes.patch", "fuzzy.patch",
    ]  # fmt: skip
    first = git(["rev-list", "--max-parents=0", "main"], git_dir=git_dir).decode().strip()
    assert set(git(["ls-tree", "-r", "--name-only", first], git_dir=git_dir).decode().split()) == set(UPSTREAM)
    place = {"GIT_DIR": str(git_dir), "GIT_INDEX_FILE": str(tmp_path / "index")}
    after = git(["rev-list", "main"], git_dir=git_dir).decode().split()
    for task in by_name(made).values():
        git(["read-tree", task.base_commit], env=place)
        git(["apply", "--cached", "-"], env=place, cwd=tmp_path, stdin=task.patch_bytes)
        git(["apply", "--cached", "-"], env=place, cwd=tmp_path, stdin=task.test_patch_bytes)
        target = after[after.index(task.base_commit) - 1]
        assert git(["write-tree"], env=place) == git(["rev-parse", f"{target}^{{tree}}"], git_dir=git_dir)


@needs_apt
def test_layers_of_a_set_share_builds(archive: Path, tmp_path: Path) -> None:
    made = build(archive, tmp_path / "cache")
    tasks, names = by_name(made), {}
    for line in git(["log", "--format=%H %s"], git_dir=made / f"repos/debian__{PACKAGE}.git").decode().splitlines():
        commit, name = line.split(" ", 1)
        names[commit] = name
    chains = {key: [names[layer] for layer in task.layers] for key, task in tasks.items()}
    assert chains == {
        "bytes": ["c.patch"],
        "fuzzy": ["c.patch", "bytes.patch"],
        "gh-1": ["upstream", "debian.diff"],
    }
    assert list(tasks) == ["bytes", "fuzzy", "gh-1"]


@needs_apt
def test_a_second_build_is_the_first_one_unless_refreshed(archive: Path, tmp_path: Path) -> None:
    made = build(archive, tmp_path / "cache")
    stamp = (made / "meta.json").stat().st_mtime_ns
    shutil.rmtree(archive)
    assert build(archive, tmp_path / "cache") == made
    assert build(archive, tmp_path / "cache", refresh=True) == made, "from the downloads that are kept"
    assert (made / "meta.json").stat().st_mtime_ns == stamp
    assert not [path for path in made.parent.iterdir() if path.name.startswith(f".{PACKAGE}")]


@needs_apt
def test_two_builders_at_once_make_one_set(archive: Path, tmp_path: Path) -> None:
    made: list[Path] = []
    threads = [threading.Thread(target=lambda: made.append(build(archive, tmp_path / "cache"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 3 and len(set(made)) == 1
    assert sorted(path.name for path in (tmp_path / "cache/tasks").iterdir()) == [
        "debian-python3.99-3.99.1-2_x-f2",
        "default",
    ]


@needs_apt
def test_nothing_to_fetch_is_told_with_apts_words(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no version of python3\.99 can be fetched: .*E: "):
        build(tmp_path / "absent", tmp_path / "cache")
    assert not list((tmp_path / "cache/tasks").iterdir())


def test_other_packages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no package 'bash', only python3\.N"):
        build_debian("bash", cache=tmp_path)


@pytest.mark.slow
@needs_apt
def test_a_real_package(tmp_path: Path) -> None:
    try:
        made = build_debian("python3.11", cache=tmp_path)
    except TaskError as error:
        pytest.skip(str(error))
    assert len(load_tasks(made / "tasks.jsonl")) > 20


# The machine's apt sources


def test_only_the_distributions_own_archives_are_taken(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://commented bookworm main\n"
        "deb [arch=amd64 signed-by=/k.gpg] http://user:secret@m/debian bookworm main contrib # note\n"
        "deb-src http://m/debian bookworm main\n"
    )
    (tmp_path / "sources.list.d/x.list").write_text("deb http://docker bookworm stable\ndeb http://own ./\n")
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb deb-src\nURIs: http://n/debian http://m2/debian\nSuites: bookworm-updates bookworm-security other\n"
        "Components: main\nSigned-By:\n -----BEGIN\n .\n abc\n -----END\n\n"
        "# off\nEnabled: no\nTypes: deb\nURIs: http://off\nSuites: bookworm\nComponents: main\n\n"
        "Types: deb\nURIs: http://node\nSuites: nodistro\nComponents: main\n"
    )
    found = source_stanzas(tmp_path, codename="bookworm").split("\n\n")
    assert found == [
        "Types: deb-src\nSuites: bookworm\nURIs: http://user:secret@m/debian\nComponents: main contrib\n"
        "Signed-By: /k.gpg",
        "Types: deb-src\nSuites: bookworm\nURIs: http://m/debian\nComponents: main",
        "Types: deb-src\nSuites: bookworm-updates bookworm-security\nURIs: http://n/debian http://m2/debian\n"
        "Components: main\nSigned-By: \n -----BEGIN\n .\n abc\n -----END\n",
    ]


# Headers


@pytest.mark.parametrize(
    ("header", "text"),
    [
        (MAIL.decode(), "gh-1: Fix the first thing (#2)\n\nIt was wrong."),
        (
            "Description: Short\n Longer text\n .\n  - item\nOrigin: upstream, https://x\nBug-Debian: https://y\n",
            "Short\nLonger text\n\n - item",
        ),
        (
            "commit a956e510f6336d5ae111ba429a61c3ade30a7549\nAuthor: B <b@c>\nDate:   Thu Jan 11\n\n"
            "    [3.11] gh-2: Title (GH-3)\n    \n    Body.\n    (cherry picked from commit 66363b9a)\n    \n"
            "    Co-authored-by: C <c@d>\n\nFixes: CVE-1\n",
            "gh-2: Title (GH-3)\n\nBody.",
        ),
        ("Subject: gh-4: Same\nMIME-Version: 1.0\n\ngh-4: Same\n\nMore.\n---\n a | 1 +\n", "gh-4: Same\n\nMore."),
        ("# DP: Old style.\n\n", "Old style."),
        ("\n", ""),
    ],
    ids=["mail", "dep3", "git show", "repeated title", "old debian", "none"],
)
def test_statement_keeps_what_a_person_reads(header: str, text: str) -> None:
    assert statement(header) == text


def test_header_date() -> None:
    assert header_date(MAIL.decode()) == "2023-08-22T17:53:19Z"
    assert header_date("Description: x\n") == ""


# Layers and names


def test_plan_layers_builds_the_biggest_stretch_first_and_never_later_than_the_base() -> None:
    rebuilds = [k in (2, 5, 9) for k in range(14)]
    chosen = [1, 3, 4, 6, 7, 8, 9, 10, 13]
    plan = plan_layers(rebuilds, chosen)
    assert plan.main == 5
    assert plan.layers == {
        1: (-1, 0), 3: (-1, 2), 4: (-1, 2, 3), 6: (5,), 7: (5, 6), 8: (5, 7), 9: (5, 8), 10: (5, 9), 13: (5, 9, 12),
    }  # fmt: skip
    assert all(layer < number for number, layers in plan.layers.items() for layer in layers)
    assert sorted(chosen, key=plan.cost)[:4] == [6, 7, 8, 9]


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("Lib/test/test_asyncio/test_tasks.py", "test_asyncio.test_tasks"),
        ("Lib/test/test_re.py", "test_re"),
        ("Lib/test/test_json/__init__.py", "test_json"),
        ("Lib/test/test_email/data/msg_01.txt", ""),
        ("Lib/test/test_importlib/source/util.py", "test_importlib"),
        ("Lib/test/support/__init__.py", ""),
        ("Lib/distutils/tests/test_sysconfig.py", "test_distutils"),
        ("Lib/unittest/test/test_case.py", "test_unittest"),
    ],
)
def test_test_modules_are_named_as_regrtest_does(path: str, module: str) -> None:
    assert cpython.is_test(path)
    assert cpython.test_modules([path]) == ((module,) if module else ())


@pytest.mark.parametrize(
    ("path", "rebuild"),
    [("Objects/unicodeobject.c", True), ("Include/cpython/code.h", True), ("Lib/importlib/_bootstrap.py", True),
     ("Modules/Setup", True), ("Lib/os.py", True), ("Lib/email/os.py", False), ("Doc/x.rst", False)],
)  # fmt: skip
def test_what_needs_a_rebuild(path: str, rebuild: bool) -> None:
    assert needs_rebuild(cpython.RECIPE, [path]) is rebuild
