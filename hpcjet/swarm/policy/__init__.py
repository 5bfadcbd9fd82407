"""Policies, whatever library they are made with: their form, what they are asked, who has which."""

from hpcjet.config.swarm.policy import Activation, PolicyConfig
from hpcjet.swarm.policy.interface import Acts, Backend, Learner, Policy, PolicySpec
from hpcjet.swarm.policy.routes import Route, policy_specs, routes

__all__ = [
    "Activation",
    "Acts",
    "Backend",
    "Learner",
    "Policy",
    "PolicyConfig",
    "PolicySpec",
    "Route",
    "policy_specs",
    "routes",
]
