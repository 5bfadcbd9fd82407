"""Policies and learners of torch; a `policy.Backend`. Torch is imported where it is used."""

from hpcjet.config.swarm.learner import Algorithm, LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.learning.ranks import ALONE, Ranks
from hpcjet.swarm.policy.interface import Learner, Policy, PolicySpec
from hpcjet.swarm.torch_backend.policy import TorchPolicy
from hpcjet.swarm.torch_backend.ppo import PPOLearner
from hpcjet.swarm.torch_backend.vtrace import VTraceLearner


def make_policy(spec: PolicySpec, config: PolicyConfig, seed: int, *, device: str = "cpu") -> TorchPolicy:
    return TorchPolicy(spec, config, seed, device)


def make_learner(policy: Policy, config: LearnerConfig, seed: int, *, ranks: Ranks = ALONE) -> Learner:
    if not isinstance(policy, TorchPolicy):
        raise TypeError(f"a {type(policy).__name__} is of another backend")
    if config.algorithm is Algorithm.ppo:
        return PPOLearner(policy, config, seed, ranks)
    return VTraceLearner(policy, config, seed, ranks)
