"""The Python of a node: the one that runs this."""

import platform
import sys

from hpcjet import __version__
from hpcjet.doctor.line import Facts, Line, fail, ok
from hpcjet.doctor.order import Scene

SUBJECT = "Python"


def look(scene: Scene) -> Facts:
    return {"version": platform.python_version(), "hpcjet": __version__, "prefix": sys.prefix}


def assess(facts: Facts) -> list[Line]:
    text = f"{facts['version']} with hpcjet {facts['hpcjet']} in {facts['prefix']}"
    if not (3, 10) <= tuple(int(each) for each in facts["version"].split(".")[:2]) <= (3, 12):
        return [fail(SUBJECT, text, "hpcjet needs Python 3.10 to 3.12: name one with cluster.python=/path/to/python")]
    return [ok(SUBJECT, text)]
