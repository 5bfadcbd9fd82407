"""Learner ranks: Ray actors that learn together, each from its share of every batch.

`chief.Chief` is what rank 0 does besides: it samples, splits, tells the index, publishes, and makes checkpoints.
`rank.Rank` is the loop that all ranks go through; both are without Ray. `plane` is Ray's side of the data plane,
`meeting` how ranks find each other, `actor` the actor of a rank, `group` what a driver has of all of them.

A rank that dies ends its generation: the others cannot sum without it. The driver starts another generation, which goes
on from the newest checkpoint.

All parameters are on every rank. A model that is too large for that would be split where `rank.Rank` makes its
policies (FSDP or tensor parallel modules in a backend of its own); sums over ranks then run over the data-parallel part
of the mesh, which is all that `learning.ranks.Ranks` asks for.
"""

from hpcjet.swarm.learners.spec import LearnerSpec, LearnerStatus, RankError, RankStatus

__all__ = ["LearnerSpec", "LearnerStatus", "RankError", "RankStatus"]
