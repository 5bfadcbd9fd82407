"""Fragments of small worlds, and learners for them."""

import pickle

from hpcjet.config.swarm.learner import Algorithm, LearnerConfig
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.fragment import Fragment, Recorder
from hpcjet.swarm.learning.ranks import ALONE, Ranks
from hpcjet.swarm.policy import Learner, PolicyConfig, PolicySpec, Route
from hpcjet.swarm.torch_backend import make_learner, make_policy
from hpcjet.swarm.vector import WorldVector

SMALL = PolicyConfig(hidden=[8], log_std=-0.5)


def learner_for(
    vector: WorldVector, config: LearnerConfig, ranks: Ranks = ALONE, policy: PolicyConfig = SMALL
) -> Learner:
    (group,) = vector.spec.groups.values()
    spec = PolicySpec(group.observation_size, group.actions, group.has_mask, vector.spec.state_size)
    return make_learner(make_policy(spec, policy, seed=1), config, seed=2, ranks=ranks)


def fragment_of(vector: WorldVector, learner: Learner, steps: int = 12) -> Fragment:
    ((name, group),) = vector.spec.groups.items()
    actor = Actor(vector.spec, [Route(name, "p")], {"p": learner.policy}, seed=3)
    recorder = Recorder(group, vector.spec.worlds, steps, state_size=vector.spec.state_size)
    turn = vector.reset()
    recorder.begin(turn.groups[name], turn.state)
    while not recorder.full:
        did = actor.act(turn)[name]
        turn = vector.step({name: did.action})
        recorder.add(
            did.action, turn.groups[name], log_prob=did.log_prob, value=did.value, state=turn.state,
            final_state=turn.final_state,
        )  # fmt: skip
    recorder.fragment.version = learner.policy.version
    return recorder.fragment


def formation(seed: int = 0, **options: bool) -> FormationVector:
    return FormationVector(FormationConfig(agents=5, steps=5), 3, seed=seed, **options)  # type: ignore[arg-type]


def equal(one: object, other: object) -> bool:
    return pickle.dumps(one) == pickle.dumps(other)


def settings(algorithm: Algorithm, **more: object) -> LearnerConfig:
    return LearnerConfig(**{"algorithm": algorithm, "minibatch": 70, "epochs": 2, "entropy_coefficient": 0.01, **more})
