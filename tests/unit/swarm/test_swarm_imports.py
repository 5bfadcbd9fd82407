"""The parts of numpy import neither torch nor the libraries of environments."""

import subprocess
import sys
from pathlib import Path

import hpcjet.swarm

PACKAGE = Path(hpcjet.swarm.__file__).parent
HEAVY = {"torch", "gymnasium", "pettingzoo", "ray", "tensorboardX"}
OWN = {
    "hpcjet.swarm.losses", "hpcjet.swarm.formation.parallel_face", "hpcjet.swarm.formation.gymnasium_face",
    "hpcjet.swarm.torch_backend.linear",
}  # fmt: skip
"""Those that need them at once."""


def test_numpy_is_all_that_most_parts_import() -> None:
    parts = [".".join(path.relative_to(PACKAGE.parents[1]).with_suffix("").parts) for path in PACKAGE.rglob("*.py")]
    names = sorted({name.removesuffix(".__init__") for name in parts} - OWN)
    assert len(names) > 20
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    code += f"print({HEAVY!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.strip() == "set()"
