"""Greedy episodes."""

import numpy as np
import pytest

from hpcjet.config.swarm.environment import Api, EnvironmentConfig, GymnasiumConfig, PettingZooConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.errors import WorldError
from hpcjet.swarm.environment import make_vector, spec_of
from hpcjet.swarm.hosts.evaluate import evaluate
from hpcjet.swarm.policy import Policy, Route, policy_specs, routes
from hpcjet.swarm.policy.backends import backend


def made(env: EnvironmentConfig) -> tuple[dict[str, Policy], list[Route]]:
    form = spec_of(env)
    ways = routes(form, {})
    config = PolicyConfig(hidden=[8])
    return {n: backend("torch").make_policy(s, config, 0) for n, s in policy_specs(form, ways).items()}, ways


def test_each_world_plays_its_share_and_short_episodes_count_no_more_than_long_ones() -> None:
    env = GymnasiumConfig()
    policies, ways = made(env)
    found = evaluate(env, policies, ways, 11, 3, worlds=4)
    per_world = [[episode.number for episode in found if episode.world == world] for world in range(4)]
    assert per_world == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1]]
    assert len({episode.steps for episode in found}) > 1
    assert all(episode.returns["agent"] == episode.steps for episode in found)
    again = evaluate(env, policies, ways, 11, 3, worlds=4)
    assert again == found
    assert evaluate(env, policies, ways, 11, 4, worlds=4) != found


def test_the_likeliest_action_is_taken_whatever_the_weights_have_learned_to_see() -> None:
    env = FormationConfig(agents=6, steps=5)
    policies, ways = made(env)
    (episode,) = evaluate(env, policies, ways, 1, 0)
    vector = make_vector(env, 1, seed=int(np.random.SeedSequence(0, spawn_key=(3,)).generate_state(1)[0]),
                         first_world=0, with_state=True)  # fmt: skip
    turn = vector.reset()
    for _ in range(5):
        group = turn.groups["agent"]
        assert turn.state is not None
        state = np.repeat(turn.state, 6, axis=0)
        acts = policies["agent"].act(group.observation[0], None, state=state)
        turn = vector.step({"agent": acts.action[None]})
    assert turn.episodes == [episode]
    assert set(episode.metrics) >= {"held", "distance"}


def test_turn_based_worlds_with_several_policies_are_played() -> None:
    env = PettingZooConfig("swarm_fakes:Nim", api=Api.aec, groups={"player_0": "first", "*": "rest"})
    policies, ways = made(env)
    found = evaluate(env, policies, ways, 6, 0)
    assert len(found) == 6
    assert {sum(episode.returns.values()) for episode in found} == {0.0}


def test_episodes_without_an_end_are_named() -> None:
    env = FormationConfig(agents=2, steps=50)
    policies, ways = made(env)
    with pytest.raises(WorldError, match="world 0, step 10: 2 episodes did not end in so many steps for each"):
        evaluate(env, policies, ways, 2, 0, worlds=1, max_steps=10)
