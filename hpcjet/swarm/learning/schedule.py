"""How the learning rate falls."""


def rate_at(progress: float, end: float) -> float:
    """By what the learning rate is multiplied: 1 at first, `end` at the end, along a straight line between.

    `progress`: the share of the training that is done, from 0 to 1 (and beyond, where it stays at `end`).
    """
    return 1 - (1 - end) * min(progress, 1.0)
