"""Checkpoints of a training: RUN/swarm/checkpoints/<version>/.

- `manifest.json`: format, version, the form of the policies, and a digest of each other file.
- `learner.npz`: the learners' states; `index.npz`: the index's metadata; `hosts/<seat>.npz`: where each seat was at the
  begin of its fragment of this version.

A checkpoint appears under its name once it is whole and on the disk. One that is damaged all the same is passed over
for the one before. Nothing in them is pickled: they may come from others.
"""

from hpcjet.swarm.checkpoints.checkpoint import Checkpoint, Damaged, Form
from hpcjet.swarm.checkpoints.folder import host_states, newest_checkpoint, read_checkpoint, versions, write_checkpoint
from hpcjet.swarm.checkpoints.policies import load_policies

__all__ = [
    "Checkpoint",
    "Damaged",
    "Form",
    "host_states",
    "load_policies",
    "newest_checkpoint",
    "read_checkpoint",
    "versions",
    "write_checkpoint",
]
