"""Starting contain.py, the program that makes sandboxes without bubblewrap."""

from collections.abc import Mapping
from pathlib import Path

from hpcjet.sandbox.backend import Give, Node, Start
from hpcjet.sandbox.server_script import KEEPER

LOAD = "import sys; exec(open(int(sys.argv[1])).read())"


def contained(plan: Mapping[str, object], node: Node, give: Give) -> Start:
    """How the program is started with a plan. It is handed over as text: the sandbox user may not reach our folder."""
    program = give(Path(__file__).with_name("contain.py").read_bytes())
    whole = {**plan, "keeper": [str(node.shell), "-p", "-c", KEEPER, "hpcjet-keeper"]}
    orders = give(repr(whole).encode("utf-8", "surrogateescape"))
    # -S: nothing of site-packages is needed, and -I: nothing of the caller's environment counts.
    argv = [str(node.python), "-I", "-S", "-B", "-c", LOAD, str(program), str(orders), "{lifeline}"]
    return Start(argv, env={"PATH": "/usr/bin:/bin"}, lifeline=True)
