"""Targets and advantages, from time-major arrays [T, ...] of numpy or tensors of torch, with the same code for both.

`trajectories` joins what was recorded; `gae`, `vtrace`, `lambda_returns`, `n_step_returns` and `discounted_returns`
read it. Results carry no gradient.
"""

from hpcjet.swarm.returns.gae import gae
from hpcjet.swarm.returns.multistep import discounted_returns, lambda_returns, n_step_returns
from hpcjet.swarm.returns.trajectories import Trajectories, trajectories
from hpcjet.swarm.returns.vtrace import VTrace, vtrace

__all__ = [
    "Trajectories",
    "VTrace",
    "discounted_returns",
    "gae",
    "lambda_returns",
    "n_step_returns",
    "trajectories",
    "vtrace",
]
