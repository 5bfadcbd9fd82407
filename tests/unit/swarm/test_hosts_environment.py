"""Vectors of worlds by their settings."""

import sys
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from swarm_fakes import Nim

from hpcjet.config.swarm.environment import Api, EnvironmentConfig, GymnasiumConfig, PettingZooConfig, Stepping
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.errors import ConfigError, WorldError
from hpcjet.swarm.environment import make_vector, spec_of
from hpcjet.swarm.formation.parallel_face import FormationParallelEnv

CARTPOLE = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
SMALL = FormationConfig(agents=3, steps=4)


def two_kinds(**kwargs: Any) -> FormationParallelEnv:
    env = FormationParallelEnv(FormationConfig(agents=4, steps=3))
    env.possible_agents = ["red_0", "red_1", "red_2", "blue_0"]
    env.observation_spaces = dict.fromkeys(env.possible_agents, env.observation_spaces["agent_0"])
    env.action_spaces = dict.fromkeys(env.possible_agents, env.action_spaces["agent_0"])
    return env


@pytest.fixture(autouse=True)
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("swarm_zoo")
    module.parallel_env = lambda **kwargs: FormationParallelEnv(FormationConfig(agents=2, steps=3), **kwargs)
    module.env, module.two_kinds = Nim, two_kinds
    monkeypatch.setitem(sys.modules, "swarm_zoo", module)


KINDS: dict[str, tuple[EnvironmentConfig, str, int, int]] = {
    "formation": (SMALL, "agent", 3, 20),
    "gymnasium id": (GymnasiumConfig("CartPole-v1", kwargs={"sutton_barto_reward": True}), "agent", 1, 4),
    "gymnasium function": (GymnasiumConfig(CARTPOLE), "agent", 1, 4),
    "gymnasium module and id": (GymnasiumConfig("gymnasium.envs.classic_control:CartPole-v1"), "agent", 1, 4),
    "gymnasium vector": (GymnasiumConfig("CartPole-v1", stepping=Stepping.vector), "agent", 1, 4),
    "parallel": (PettingZooConfig("swarm_zoo", kwargs={"seed": 3}), "agent", 2, 20),
    "aec": (PettingZooConfig("swarm_zoo", api=Api.aec, kwargs={"players": 3}), "agent", 3, 2),
    "function": (PettingZooConfig("swarm_zoo:two_kinds", groups={"red_*": "red", "*": "rest"}), "red", 3, 20),
}


@pytest.mark.parametrize(("env", "group", "rows", "size"), KINDS.values(), ids=KINDS)
def test_worlds_of_each_kind_are_made_and_stepped(env: EnvironmentConfig, group: str, rows: int, size: int) -> None:
    alone = spec_of(env)
    assert (alone.groups[group].rows, alone.groups[group].observation_size) == (rows, size)
    here, there, others = (
        make_vector(env, 2, seed=1, first_world=first, with_state=True) for first in (4, 4, 6)
    )  # fmt: skip
    assert here.spec.groups == alone.groups
    assert here.spec.worlds == 2
    turns = [vector.reset() for vector in (here, there, others)]
    seen = [turn.groups[group].observation for turn in turns]
    np.testing.assert_array_equal(seen[0], seen[1])
    assert (seen[0] != seen[2]).any()
    actions = {
        name: np.zeros((2, form.rows, form.actions.columns), form.actions.dtype) for name, form in alone.groups.items()
    }
    assert here.step(actions).groups[group].observation.shape == (2, rows, size)
    for vector in (here, there, others):
        vector.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_pettingzoo_s_registry() -> None:
    pettingzoo = pytest.importorskip("pettingzoo", minversion="1.27")
    pettingzoo.register("parallel", "hpcjet/line-v0", entry_point="swarm_zoo:parallel_env", max_cycles=-1)
    assert spec_of(PettingZooConfig("hpcjet/line-v0")).groups["agent"].rows == 2


def test_only_worlds_that_have_one_show_a_global_state() -> None:
    assert spec_of(SMALL).state_size == 8
    assert spec_of(SMALL, with_state=False).state_size == 0
    assert spec_of(GymnasiumConfig()).state_size == 0


def test_imports_may_register_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "swarm_names.py").write_text(
        "from gymnasium.envs.registration import register\n"
        f"register('swarm/Pole-v0', entry_point='{CARTPOLE}', max_episode_steps=5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert spec_of(GymnasiumConfig("swarm/Pole-v0", imports=["swarm_names"])).groups["agent"].rows == 1
    gymnasium.registry.pop("swarm/Pole-v0")


WRONG = {
    "id": (GymnasiumConfig("NoSuch-v0"), r"exp.environment.env=NoSuch-v0 is not allowed: it cannot be made \(.*NoSuch"),
    "vector id": (GymnasiumConfig("NoSuch-v0", stepping=Stepping.vector), "exp.environment.env=NoSuch-v0"),
    "import": (GymnasiumConfig(imports=["no_such"]), r"importing no_such: No module named 'no_such'\); install it"),
    "module": (PettingZooConfig("no_such.zoo"), r"exp.environment.env=no_such.zoo .*importing no_such.zoo: No module"),
    "function": (PettingZooConfig("swarm_zoo:nothing"), "the module has no nothing"),
    "api": (PettingZooConfig("swarm_fakes"), r"the module has no parallel_env \(exp.environment.api=parallel\)"),
    "registry": (PettingZooConfig("classic/no-such-v1"), "exp.environment.env=classic/no-such-v1 is not allowed"),
    "group": (
        PettingZooConfig("swarm_zoo:two_kinds", groups={"red_*": "red"}),
        r"exp.environment.groups=red_\* is not allowed: none fits the agent blue_0",
    ),
    "rows": (PettingZooConfig("swarm_zoo:two_kinds", rows={"agent": 2}), "a world has 4 agents of it"),
}


@pytest.mark.parametrize(("env", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_made_is_named(env: EnvironmentConfig, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spec_of(env)


def test_an_environment_that_refuses_its_arguments_is_a_world_that_failed() -> None:
    with pytest.raises(WorldError, match=r"world 7, reset: it raised TypeError: .*unexpected keyword argument 'no'"):
        make_vector(GymnasiumConfig(CARTPOLE, kwargs={"no": 1}), 1, seed=0, first_world=7, with_state=False)


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"an environment has a name; set exp\.environment\.env"):
        PettingZooConfig("")
    with pytest.raises(ConfigError, match=r"exp\.environment\.limit_s=0 is not allowed"):
        GymnasiumConfig(limit_s=0)
