"""Vectors of worlds by their settings."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import Any

from hpcjet.config.check import bad
from hpcjet.config.swarm.environment import Api, EnvironmentConfig, GymnasiumConfig, PettingZooConfig, Stepping
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.swarm.formation import FormationVector
from hpcjet.swarm.vector import VectorSpec, WorldVector
from hpcjet.swarm.worlds import AecWorld, GymnasiumVector, ParallelWorld, SingleWorld, Worlds
from hpcjet.swarm.worlds.kinds import GroupOf
from hpcjet.swarm.worlds.world import World
from hpcjet.swarm.worlds.worlds import one_group

__all__ = ["EnvironmentConfig", "group_of", "make_vector", "spec_of", "world_maker"]


def make_vector(
    env: EnvironmentConfig, worlds: int, *, seed: int, first_world: int, with_state: bool, stagger: bool = False
) -> WorldVector:
    """The worlds first_world to first_world + worlds - 1 of a run with this seed.

    `with_state` asks for the global state that a central critic sees, where the worlds have one. With `stagger`
    formations begin at different points of their first episode.

    Raises ConfigError for an environment that cannot be found or has spaces that are not supported, WorldError for one
    that cannot be made or begun.
    """
    match env:
        case FormationConfig():
            return FormationVector(
                env, worlds, seed=seed, first_world=first_world, with_state=with_state, stagger=stagger
            )
        case GymnasiumConfig(stepping=Stepping.vector):
            return GymnasiumVector(_gymnasium_vector(env, worlds), seed=seed, first_world=first_world)
        case GymnasiumConfig():
            make = partial(_gymnasium_world, env)
            return Worlds(
                [make] * worlds, seed=seed, first_world=first_world, limit_s=env.limit_s, max_faults=env.max_faults
            )
        case PettingZooConfig():
            return Worlds(
                [_pettingzoo_world(env)] * worlds, seed=seed, first_world=first_world, group_of=group_of(env.groups),
                rows=env.rows, limit_s=env.limit_s, max_faults=env.max_faults, with_state=with_state,
            )  # fmt: skip


def spec_of(env: EnvironmentConfig, *, with_state: bool = True) -> VectorSpec:
    """Shapes of one world, which is made and closed again. Raises as `make_vector` does."""
    vector = make_vector(env, 1, seed=0, first_world=0, with_state=with_state)
    try:
        return vector.spec
    finally:
        vector.close()


def world_maker(env: GymnasiumConfig | PettingZooConfig) -> Callable[[], World]:
    """What makes one of its worlds, to be stepped by itself. Raises ConfigError if it cannot be found."""
    return partial(_gymnasium_world, env) if isinstance(env, GymnasiumConfig) else _pettingzoo_world(env)


def group_of(groups: Mapping[str, str]) -> GroupOf:
    """Each agent's group by the first pattern that fits. It raises ConfigError for an agent that none fits."""
    if not groups:
        return one_group

    def find(agent: str) -> str:
        for pattern, group in groups.items():
            if fnmatchcase(agent, pattern):
                return group
        raise bad("exp.environment.groups", f"{', '.join(groups)}", f"none fits the agent {agent}", f"add {agent} or *")

    return find


def _gymnasium_world(env: GymnasiumConfig) -> SingleWorld:
    import gymnasium

    if function := _by_name(env):
        return SingleWorld(function(**env.kwargs))
    try:
        # Its checker is left out: what it looks at is checked here too, in each step.
        return SingleWorld(gymnasium.make(env.env, disable_env_checker=True, **env.kwargs))
    except (gymnasium.error.UnregisteredEnv, ImportError) as error:
        raise _unknown(env, str(error)) from error


def _gymnasium_vector(env: GymnasiumConfig, worlds: int) -> Any:
    import gymnasium

    if function := _by_name(env):
        return function(num_envs=worlds, **env.kwargs)
    try:
        # By default not what an environment has of its own for vectors: that takes one seed for all, each world has its
        # own here.
        return gymnasium.make_vec(env.env, num_envs=worlds, **{"vectorization_mode": "sync", **env.kwargs})
    except (gymnasium.error.UnregisteredEnv, ImportError) as error:
        raise _unknown(env, str(error)) from error


def _pettingzoo_world(env: PettingZooConfig) -> Callable[[], ParallelWorld | AecWorld]:
    kind = ParallelWorld if env.api is Api.parallel else AecWorld
    function = _by_name(env) or (_registered(env) if "/" in env.env else _of_module(env))
    return lambda: kind(function(**env.kwargs))


def _registered(env: PettingZooConfig) -> Callable[..., Any]:
    import pettingzoo

    if not hasattr(pettingzoo, "make"):
        raise _unknown(env, f"PettingZoo {pettingzoo.__version__} has no names of this form")
    try:
        pettingzoo.spec(env.api.value, env.env)
    except Exception as error:  # of a type that is not public
        raise _unknown(env, str(error)) from error
    return partial(pettingzoo.make, env.api.value, env.env)


def _of_module(env: PettingZooConfig) -> Callable[..., Any]:
    name = "parallel_env" if env.api is Api.parallel else "env"
    function: Callable[..., Any] | None = getattr(_module(env, env.env), name, None)
    if function is None:
        raise _unknown(env, f"the module has no {name} (exp.environment.api={env.api.value})")
    return function


def _by_name(env: GymnasiumConfig | PettingZooConfig) -> Callable[..., Any] | None:
    """The function of module:function; None for another name. What `imports` lists is imported."""
    for name in env.imports:
        _module(env, name)
    module, colon, function = env.env.partition(":")
    if not colon:
        return None
    found: Callable[..., Any] | None = getattr(_module(env, module), function, None)
    if found is None and isinstance(
        env, PettingZooConfig
    ):  # Gymnasium has names of this form too: a module, and an id of it
        raise _unknown(env, f"the module has no {function}")
    return found


def _module(env: GymnasiumConfig | PettingZooConfig, name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise _unknown(env, f"importing {name}: {error}") from error


def _unknown(env: GymnasiumConfig | PettingZooConfig, why: str) -> Exception:
    step = "install it on all nodes, or see exp.environment.env and exp.environment.imports"
    return bad("exp.environment.env", env.env, f"it cannot be made ({why})", step)
