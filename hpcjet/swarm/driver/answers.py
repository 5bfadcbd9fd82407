"""What it looks like when an actor gives no answer."""

from hpcjet.swarm.actors import lost_errors


def no_answer() -> tuple[type[BaseException], ...]:
    """What a call raises whose actor is away, or that failed there: the driver goes on without the answer."""
    import ray

    return (*lost_errors(), ray.exceptions.RayError)
