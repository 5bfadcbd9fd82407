"""What was recorded, as trajectories: ends, pauses and steps that were never completed in their places."""

from dataclasses import dataclass

from hpcjet.swarm.returns.backend import Array, constant, full, namespace


@dataclass(frozen=True)
class Trajectories:
    """Steps of many rows, time-major: every array is [T, ...], `valid`, `cut` and `absent` are boolean.

    A row is the place of an agent; several lives may follow each other in it, with cuts between them.
    """

    rewards: Array
    """What an action earned, until the agent's next action or its end."""
    discounts: Array
    """gamma, and 0 where the agent terminated: there is nothing to bootstrap from."""
    values: Array
    """V of the observation acted on."""
    next_values: Array
    """V of the true next observation: the final one where the life ended, never that of another life."""
    cut: Array
    """Whether no trace runs on from this step: the life ended here, by termination or truncation."""
    valid: Array
    """Whether there was an action and its outcome is known: only these steps are learned from."""
    absent: Array
    """Whether the agent did not act (paused, or nobody was there): traces run through as if the step did not exist."""

    def __post_init__(self) -> None:
        shape = self.rewards.shape
        for name in ("discounts", "values", "next_values", "cut", "valid", "absent"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"{name} has shape {tuple(getattr(self, name).shape)}, rewards {tuple(shape)}")

    @property
    def stop(self) -> Array:
        """Steps from which no trace runs on: ends, and steps that were not completed."""
        return self.cut | ~(self.valid | self.absent)


def trajectories(
    rewards: Array,
    values: Array,
    last_values: Array,
    *,
    gamma: float,
    terminated: Array,
    truncated: Array | None = None,
    final_values: Array | None = None,
    final_known: Array | None = None,
    present: Array | None = None,
    last_present: Array | None = None,
) -> Trajectories:
    """Join records [T, ...] of rows that may end, pause and begin anew.

    `rewards[t]`, `terminated[t]`, `truncated[t]` came with the step after the actions of time t; `values[t]` is V of
    the observation at time t; `last_values` [...] is V of the observation after the last step. `final_values[t]` is V
    of a life's final observation where it was truncated at t, as far as `final_known[t]`; without it the step is not
    valid: no bootstrap is invented. `present[t]` tells which rows acted at time t, `last_present` which have an
    observation after the last step. What a paused agent earns, and its end, belong to its latest action; a pause is no
    end and is not discounted. An action whose outcome lies beyond the last step is not valid.
    """
    rewards, values = constant(rewards), constant(values)
    yes, no = full(rewards, True), full(rewards, False)
    over = constant(terminated) != 0
    ended = over | (no if truncated is None else constant(truncated) != 0)
    here = yes if present is None else constant(present) != 0
    if final_values is None:
        final_values, final_known = full(values, 0.0), no
    elif final_known is None:
        final_known = yes
    fold = _Fold(constant(last_values), yes[0] if last_present is None else constant(last_present) != 0, rewards[0])
    final_values, final_known = constant(final_values), constant(final_known) != 0
    parts = [
        fold.step(rewards[t], values[t], over[t], ended[t], final_values[t], final_known[t], here[t])
        for t in reversed(range(len(rewards)))
    ]
    xp = namespace(rewards)
    reward, discount, next_value, cut, valid = (xp.stack(part[::-1]) for part in zip(*parts, strict=True))
    zero = full(values, 0.0)
    return Trajectories(
        rewards=reward, discounts=gamma * discount, values=xp.where(here, values, zero), next_values=next_value,
        cut=cut, valid=valid, absent=~here,
    )  # fmt: skip


class _Fold:
    """Backwards over time: what was seen after the present step, for each row."""

    def __init__(self, last_values: Array, last_present: Array, like: Array) -> None:
        self.value, self.known = last_values, last_present
        self.reward, self.over, self.ended = full(like, 0.0), full(like, False), full(like, False)
        self.final, self.final_known = full(last_values, 0.0), full(like, False)

    def step(
        self, reward: Array, value: Array, over: Array, ended: Array, final: Array, final_known: Array, here: Array
    ) -> tuple[Array, ...]:
        """Reward, whether not terminated (as a number), next value, cut and valid of one step."""
        where = namespace(reward).where
        zero, no = full(reward, 0.0), full(ended, False)
        # What comes later than an end is of another life.
        reward = reward + where(ended, zero, self.reward)
        over, final, final_known = (
            where(ended, over, self.over),
            where(ended, final, self.final),
            where(ended, final_known, self.final_known),
        )
        ended = ended | self.ended
        valid = here & where(ended, over | final_known, self.known)
        next_value = where(
            ended, where(over | ~final_known, full(value, 0.0), final), where(self.known, self.value, 0.0)
        )
        self.reward, self.over, self.ended = where(here, zero, reward), where(here, no, over), where(here, no, ended)
        self.final, self.final_known = final, where(here, no, final_known)
        self.value, self.known = where(here, value, self.value), here | self.known
        alive = full(value, 1.0) * ~over
        return where(here, reward, zero), alive, where(here, next_value, 0.0), here & ended, valid
