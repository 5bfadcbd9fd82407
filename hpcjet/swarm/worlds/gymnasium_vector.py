"""A vector environment of Gymnasium as a vector of worlds with one agent each."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.errors import WorldError
from hpcjet.swarm.seeds import environment_seed
from hpcjet.swarm.spaces.actions import ActionDecoder
from hpcjet.swarm.spaces.observations import ObservationEncoder
from hpcjet.swarm.spaces.refusal import Misfit
from hpcjet.swarm.vector import Episode, Floats, GroupSpec, GroupTurn, Turn, VectorSpec

GROUP = "agent"


class GymnasiumVector:
    """Its sub-environments, whichever way it resets them; a WorldVector.

    SAME_STEP: final observations come beside the new ones. NEXT_STEP: the step after an end only resets, so the agent
    is not present for it and nothing is learned from it. DISABLED: worlds that ended are reset here, with seeds of
    their own. An environment that is a vector by itself may take one seed alone for all its worlds: it gets that of
    the first one, and so what they begin with depends on how worlds are dealt to seats.
    """

    def __init__(self, env: Any, *, seed: int, first_world: int = 0) -> None:
        from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

        self.env, self._seed, self._first = env, seed, first_world
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._same_step, self._disabled = (
            self._mode is mode for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)
        )
        self._encoder = ObservationEncoder(env.single_observation_space, path=GROUP)
        self._decoder = ActionDecoder(env.single_action_space, path=GROUP)
        group = GroupSpec(rows=1, observation_size=self._encoder.size, actions=self._decoder.layout)
        self._spec = VectorSpec(int(env.num_envs), {GROUP: group})
        self._present = np.ones(self._spec.worlds, dtype=bool)
        self._episode, self._steps = np.zeros((2, self._spec.worlds), dtype=np.int64)
        self._returns = np.zeros(self._spec.worlds)
        self._at: npt.NDArray[np.int64] | None = None
        """The step that each world is in; None in a reset of all."""
        self._takes_seeds: bool | None = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv) or None
        """Whether it takes a seed for each world; None: not known yet."""

    @property
    def spec(self) -> VectorSpec:
        return self._spec

    def reset(self) -> Turn:
        self._at = None
        observation = self._reset()
        self._present = np.ones(self._spec.worlds, dtype=bool)
        self._steps[:], self._returns[:] = 0, 0
        no = np.zeros(self._spec.worlds, dtype=bool)
        return self._turn(self._encoded(observation), np.zeros(self._spec.worlds), no, no)

    def step(self, actions: Mapping[str, npt.NDArray[Any]]) -> Turn:
        acted, self._at = self._present, self._steps.copy()
        rows = np.where(acted[:, None], actions[GROUP].reshape(self._spec.worlds, -1), 0)
        observation, reward, terminated, truncated, infos = self._call("step", self._decoded(rows))
        reward = np.where(acted, reward, 0.0)
        terminated = np.asarray(terminated) & acted
        truncated = np.asarray(truncated) & acted & ~terminated
        ended = np.flatnonzero(terminated | truncated)
        self._steps += acted
        self._returns += reward
        episodes = self._episodes(ended)
        self._present = np.ones(self._spec.worlds, dtype=bool)
        encoded = self._encoded(observation)
        final = self._finals(ended, encoded, infos)
        if len(ended) and self._disabled:
            encoded = self._encoded(self._reset(options={"reset_mask": terminated | truncated}))
        elif not self._same_step:
            self._present[ended] = False
        turn = self._turn(encoded, reward, terminated, truncated)
        turn.groups[GROUP].final_rows, turn.groups[GROUP].final_observation = ended, final
        turn.episodes = episodes
        return turn

    def close(self) -> None:
        self.env.close()

    def _finals(self, ended: npt.NDArray[np.int64], encoded: Floats, infos: Mapping[str, Any]) -> Floats:
        if not self._same_step:
            return encoded[ended]
        final = np.empty((len(ended), self._encoder.size), dtype=np.float32)
        for number, world in enumerate(ended):
            self._write(infos["final_obs"][world], final[number], int(world))
        return final

    def _reset(self, **options: Any) -> Any:
        """What is observed then."""
        from gymnasium.error import Error

        seeds = self._seeds()
        if self._takes_seeds is None:
            try:
                observation, _ = self.env.reset(seed=seeds, **options)
                self._takes_seeds = True
                return observation
            except (Error, TypeError, ValueError):
                self._takes_seeds = False
        # By the number of all episodes, so that no reset repeats another one.
        one = environment_seed(self._seed, self._first, int(self._episode.sum()))
        return self._call("reset", seed=seeds if self._takes_seeds else one, **options)[0]

    def _seeds(self) -> list[int]:
        return [
            environment_seed(self._seed, self._first + world, int(self._episode[world]))
            for world in range(self._spec.worlds)
        ]

    def _episodes(self, ended: npt.NDArray[np.int64]) -> list[Episode]:
        episodes = [
            Episode(
                self._first + int(world), int(self._episode[world]), int(self._steps[world]),
                returns={GROUP: float(self._returns[world])}, agents={GROUP: 1},
            )
            for world in ended
        ]  # fmt: skip
        self._episode[ended] += 1
        self._steps[ended], self._returns[ended] = 0, 0
        return episodes

    def _turn(
        self, observation: Floats, reward: npt.NDArray[Any], terminated: npt.NDArray[Any], truncated: npt.NDArray[Any]
    ) -> Turn:
        flags = terminated[:, None], truncated[:, None]
        group = GroupTurn(
            observation[:, None], self._present[:, None].copy(), reward[:, None].astype(np.float32), *flags,
            final_observation=np.empty((0, self._encoder.size), dtype=np.float32),
        )  # fmt: skip
        return Turn({GROUP: group})

    def _encoded(self, observation: Any) -> Floats:
        encoded = np.empty((self._spec.worlds, self._encoder.size), dtype=np.float32)
        self._write(observation, encoded)
        return encoded

    def _write(self, observation: Any, out: Floats, world: int = 0) -> None:
        """`world`: whose it is, or the first one of all."""
        try:
            self._encoder.write(observation, out)
        except Misfit as misfit:
            raise self._error(str(misfit), world) from None
        finite = np.isfinite(out)
        if not finite.all():
            raise self._error(
                "the observation is not finite", int(np.argmin(finite.all(axis=1))) if out.ndim == 2 else world
            )

    def _error(self, message: str, world: int) -> WorldError:
        step = None if self._at is None else int(self._at[world])
        return WorldError(message, world=self._first + world, agent=GROUP, step=step)

    def _decoded(self, rows: npt.NDArray[Any]) -> Any:
        try:
            return self._decoder.decode_many(rows)
        except Misfit:
            for world, row in enumerate(rows):
                try:
                    self._decoder.decode(row)
                except Misfit as misfit:
                    number, step = self._first + world, int(self._steps[world])
                    raise WorldError(str(misfit), world=number, agent=GROUP, step=step) from None
            raise

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.env, name)(*args, **kwargs)
        except Exception as error:  # whatever an environment may raise
            last = self._first + self._spec.worlds - 1
            step = None if name == "reset" else int(self._steps.max())
            message = f"one of the worlds {self._first} to {last} raised {type(error).__name__}: {error}"
            raise WorldError(message, world=self._first, step=step) from error
