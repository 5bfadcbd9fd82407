"""A real Slurm cluster on one machine, for tests and for trying things."""

from hpcjet.lab.lab import Lab, LabStatus
from hpcjet.lab.node import NodeProcess
from hpcjet.lab.user import User

__all__ = ["Lab", "LabStatus", "NodeProcess", "User"]
