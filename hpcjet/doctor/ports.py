"""Ports that a run can take on a node."""

import os

from hpcjet.cluster.ports import BLOCK, ephemeral_floor, free_blocks
from hpcjet.doctor.line import Facts, Line, fail, ok
from hpcjet.doctor.order import Scene
from hpcjet.errors import BootstrapError

SUBJECT = "ports"


def allocation(scene: Scene) -> str:
    """The name from which the node agents of this allocation find their ports."""
    return f"{os.environ.get('HPCJET_ALLOCATION', '')}-{os.environ.get('HPCJET_RESTART', '0')}"


def look(scene: Scene) -> Facts:
    try:
        return {"base": next(free_blocks(allocation(scene))).base, "floor": ephemeral_floor()}
    except BootstrapError as error:
        return {"refused": str(error)}


def assess(facts: Facts) -> list[Line]:
    if "refused" in facts:
        what, _, do = facts["refused"].rpartition(": ")
        return [fail(SUBJECT, what, do)]
    return [ok(SUBJECT, f"a block of {BLOCK} is free below {facts['floor']}, from which the kernel draws its own")]
