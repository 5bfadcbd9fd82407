"""An environment that has no way to draw itself."""

from typing import Any

from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Blind(CartPoleEnv):
    """CartPole in the dark."""

    metadata = {"render_modes": ["human"]}  # noqa: RUF012


def make(**kwargs: Any) -> Blind:
    return Blind(**kwargs)
