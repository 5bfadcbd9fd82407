"""A process that prepares a tree: `python tree_maker.py ROOT REPOS COMMIT SECONDS [SHELF]`; waits for a line on stdin.

Then it uses the tree for some seconds, looking all the time whether it is whole, and prints what it saw as JSON.
"""

import json
import sys
import time
from pathlib import Path

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.tasks.layerfile import read_about
from hpcjet.tasks.room import Keep
from hpcjet.tasks.shelf import Shelf
from hpcjet.tasks.task import Recipe, Task
from hpcjet.tasks.tree import TreeStore

PARTS = 8
RECIPE = Recipe(setup=tuple(f"sleep 0.03; echo {number} > part{number}" for number in range(PARTS)))


def main(root: Path, repos: Path, commit: str, seconds: float, shelf: Shelf | None) -> None:
    task = Task(
        instance_id="own__calc-1", repo="own/calc", base_commit=commit, problem_statement="", patch="", test_patch="",
        recipe=RECIPE,
    )  # fmt: skip
    store = TreeStore(root, SandboxConfig(), repos, shelf=shelf)
    print("ready", flush=True)
    sys.stdin.readline()
    with store.lend(task) as tree:
        end = time.monotonic() + seconds
        while True:
            parts = [(tree.lowers[-1] / f"part{number}").read_text() for number in range(PARTS)]
            assert parts == [f"{number}\n" for number in range(PARTS)], parts
            if time.monotonic() >= end:
                break
            time.sleep(0.01)
        about = read_about(tree.git_dir.parent)
    assert about
    print(json.dumps({"mark": about.mark, "head": tree.head}), flush=True)


if __name__ == "__main__":
    shared = [Shelf(Path(folder), Keep()) for folder in sys.argv[5:]]
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), shared[0] if shared else None)
