"""The samples that PPO learns from: flat, with advantages and returns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.policy.interface import Policy, PolicySpec
from hpcjet.swarm.returns import gae
from hpcjet.swarm.vector import Bools, Floats, Ints

ROWS = 50_000
"""Rows whose values are asked for at a time: states are copied for each of them."""


@dataclass
class Batch:
    """N places, of which only those of `index` are learned from; arrays of one fragment are not copied."""

    observation: Floats
    """[N, F]"""
    action: npt.NDArray[Any]
    """[N, A]"""
    log_prob: Floats
    """[N], of the policy that acted."""
    value: Floats
    """[N], in units of reward."""
    advantage: Floats
    """[N]"""
    returns: Floats
    """[N], in units of reward."""
    index: Ints
    """[n]"""
    action_mask: Bools | None = None
    """[N, M]"""
    state: Floats | None = None
    """[K, S], with its place for each sample in `state_of` [N]: worlds are not copied for each agent."""
    state_of: Ints | None = None


def check_fragment(fragment: Fragment, spec: PolicySpec) -> None:
    """Raise ValueError, with both shapes, for a fragment that is not of this policy."""
    for name, columns in (("observation", spec.observation_size), ("action", spec.actions.columns)):
        shape = getattr(fragment, name).shape
        if shape[-1] != columns:
            raise ValueError(f"{name} of the fragment has shape {shape}, (..., {columns}) is wanted")
    width = 0 if fragment.state is None else fragment.state.shape[-1]
    if spec.state_size not in (0, width):
        raise ValueError(f"state of the fragment has {width} columns, {spec.state_size} are wanted")
    if spec.has_mask and fragment.action_mask is None:
        raise ValueError(f"action_mask of the fragment is missing, (..., {spec.actions.choices}) is wanted")


def batch_of(fragments: Sequence[Fragment], policy: Policy, config: LearnerConfig) -> Batch:
    """Join fragments, with advantages by GAE from values of the policy; those of its own version are taken as noted.

    A rank without fragments has an empty batch.
    """
    if not fragments:
        return _empty(policy.spec)
    parts = [_of_fragment(fragment, policy, config) for fragment in fragments]
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(part.observation) for part in parts[:-1])])
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("observation", "action", "log_prob", "value", "advantage", "returns", "action_mask", "state")
        if getattr(parts[0], name) is not None
    }
    if "state" in joined:
        worlds = np.cumsum([0, *(len(part.state) for part in parts[:-1])])  # type: ignore[arg-type]
        joined["state_of"] = np.concatenate([part.state_of + at for part, at in zip(parts, worlds, strict=True)])
    index = np.concatenate([part.index + start for part, start in zip(parts, starts, strict=True)])
    return Batch(**joined, index=index)


def agent_states(state: Floats, rows: int) -> Floats:
    """[..., W, S] as [N, S], the world's for each of its agents."""
    flat = state.reshape(-1, state.shape[-1])
    return np.repeat(flat, rows, axis=0)


def last_values(fragment: Fragment, policy: Policy) -> tuple[Floats, Floats]:
    """V [W, R] of what stands after the last step, and [n] of `finals`."""
    spec, shape = policy.spec, fragment.reward.shape[1:]
    state, final_state = None, None
    if spec.state_size and fragment.state is not None:
        state, final_state = agent_states(fragment.state[-1], shape[1]), fragment.final_states()
    last = policy.values(np.ascontiguousarray(fragment.observation[-1]).reshape(-1, spec.observation_size), state)
    _, final = fragment.finals()
    return last.reshape(shape), policy.values(final, final_state) if len(final) else np.empty(0, dtype=np.float32)


def noted_values(fragment: Fragment, policy: Policy) -> Floats:
    """V [T, W, R]: as noted if this version acted, else by what the policy is now."""
    if fragment.version == policy.version and fragment.value is not None:
        return fragment.value
    (steps, *shape), values = fragment.reward.shape, np.empty_like(fragment.reward)
    at_once = max(1, ROWS // max(1, shape[0] * shape[1]))
    for start in range(0, steps, at_once):
        some = slice(start, min(start + at_once, steps))
        state = None
        if policy.spec.state_size and fragment.state is not None:
            state = agent_states(fragment.state[some], shape[1])
        rows = np.ascontiguousarray(fragment.observation[some]).reshape(-1, policy.spec.observation_size)
        values[some] = policy.values(rows, state).reshape(-1, *shape)
    return values


def _of_fragment(fragment: Fragment, policy: Policy, config: LearnerConfig) -> Batch:
    check_fragment(fragment, policy.spec)
    values = noted_values(fragment, policy)
    last, final = last_values(fragment, policy)
    steps = fragment.trajectories(np.concatenate([values, last[None]]), final, gamma=config.gamma)
    advantage = gae(steps, gae_lambda=config.trace).astype(np.float32, copy=False)
    times, worlds, rows = fragment.reward.shape
    state, state_of = None, None
    if policy.spec.state_size and fragment.state is not None:
        state = fragment.state[:-1].reshape(times * worlds, -1)
        state_of = np.arange(times * worlds * rows) // rows
    mask = fragment.action_mask if policy.spec.has_mask else None
    return Batch(
        observation=fragment.observation[:-1].reshape(-1, fragment.observation.shape[-1]),
        action=fragment.action.reshape(-1, fragment.action.shape[-1]),
        log_prob=_flat(fragment.log_prob), value=_flat(steps.values), advantage=_flat(advantage),
        returns=_flat(advantage + steps.values), index=np.flatnonzero(steps.valid),
        action_mask=None if mask is None else mask.reshape(-1, mask.shape[-1]), state=state, state_of=state_of,
    )  # fmt: skip


def _empty(spec: PolicySpec) -> Batch:
    nothing, columns = np.empty(0, dtype=np.float32), spec.actions.columns
    return Batch(
        observation=np.empty((0, spec.observation_size), dtype=np.float32),
        action=np.empty((0, columns), dtype=spec.actions.dtype), log_prob=nothing, value=nothing, advantage=nothing,
        returns=nothing, index=np.empty(0, dtype=np.int64),
    )  # fmt: skip


def _flat(array: Floats | None) -> Floats:
    if array is None:
        raise ValueError("log_prob of the fragment is missing: the policy that acted must note it")
    return np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
