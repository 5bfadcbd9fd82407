"""Base trees: what building one costs, what it costs the next node, the next attempt, and an attempt without overlays.

    python tests/bench/trees.py [--tasks 3]

Prints JSON lines, in seconds and MiB. The trees are CPython's, of the default task set; the first takes minutes.
As root, copies are also tried on btrfs and XFS, mounted from files, where their mkfs is there.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.paths import cache_dir
from hpcjet.sandbox.copies import copy_stack
from hpcjet.sandbox.identity import identity
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.clean import list_layers
from hpcjet.tasks.jsonl import load_tasks
from hpcjet.tasks.room import Keep
from hpcjet.tasks.sets import resolve_tasks
from hpcjet.tasks.shelf import Shelf
from hpcjet.tasks.tree import PreparedTree, TreeStore

CONFIG = SandboxConfig()
MIB = 1024**2
LENDS = 200


def tell(what: str, **values: float) -> None:
    print(json.dumps({"what": what, **{name: round(value, 4) for name, value in values.items()}}), flush=True)


def nodes(place: Path, num_tasks: int) -> PreparedTree:
    """Two nodes with folders of their own, one after the other."""
    file, repos = resolve_tasks(None, None, cache=cache_dir())
    tasks = load_tasks(file)[:num_tasks]
    for node in ("first", "second"):
        store = TreeStore(place / node, CONFIG, repos, shelf=Shelf(place / "shelf", Keep()))
        for number, task in enumerate(tasks):
            begin = time.perf_counter()
            with store.lend(task) as tree:
                tell(f"{node} node, tree {number}", seconds=time.perf_counter() - begin, layers=len(tree.lowers))
    layers = sum(layer.size_bytes for layer in list_layers(place / "second"))
    packs = sum(pack.stat().st_size for pack in (place / "shelf").glob("*.tar.gz"))
    tell("size", layers_mib=layers / MIB, packs_mib=packs / MIB)
    begin = time.perf_counter()
    for _ in range(LENDS):
        with store.lend(tasks[-1]) as tree:
            pass
    tell("a tree that is there, lent", seconds=(time.perf_counter() - begin) / LENDS)
    return tree


def copies(place: Path, lowers: tuple[Path, ...]) -> None:
    who = identity(CONFIG)

    def copy(sources: tuple[Path, ...], target: Path) -> float:
        target.mkdir()
        who.own(target)
        begin = time.perf_counter()
        copy_stack(sources, target, who)
        return time.perf_counter() - begin

    tell("a copy", seconds=copy(lowers, place / "copy"))
    for kind in ("btrfs", "xfs"):
        if os.geteuid() == 0 and shutil.which(f"mkfs.{kind}"):
            with mounted(place, kind) as folder:
                copy(lowers, folder / "base")
                before = used(folder)
                seconds = copy((folder / "base",), folder / "copy")
                tell(f"a copy on {kind}", seconds=seconds, took_mib=(used(folder) - before) / MIB)


@contextlib.contextmanager
def mounted(place: Path, kind: str) -> Iterator[Path]:
    image, folder = place / f"{kind}.image", place / kind
    with image.open("wb") as file:
        file.truncate(2048 * MIB)
    subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True, capture_output=True)
    folder.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def used(folder: Path) -> int:
    subprocess.run(["sync", "-f", str(folder)], check=True)
    disk = os.statvfs(folder)
    return (disk.f_blocks - disk.f_bfree) * disk.f_frsize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3)
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="hpcjet-bench-"))
    place.chmod(0o755)
    try:
        tree = nodes(place, arguments.tasks)
        copies(place, tree.lowers)
    finally:
        remove_tree(place)


if __name__ == "__main__":
    main()
