"""What all groups of a vector of worlds do, step by step, noted for each group; the caller steps."""

from collections.abc import Mapping

from hpcjet.swarm.acting import GroupActs
from hpcjet.swarm.fragment import Recorder
from hpcjet.swarm.vector import Turn, VectorSpec


def recorders_of(spec: VectorSpec, steps: int) -> dict[str, Recorder]:
    """One for each group."""
    return {
        name: Recorder(group, spec.worlds, steps, state_size=spec.state_size) for name, group in spec.groups.items()
    }


def record(recorders: Mapping[str, Recorder], acts: Mapping[str, GroupActs], turn: Turn) -> None:
    """What the groups did, and the turn that came of it."""
    for name, recorder in recorders.items():
        did = acts[name]
        value = 0.0 if did.value is None else did.value
        recorder.add(
            did.action, turn.groups[name], log_prob=did.log_prob, value=value, state=turn.state,
            final_state=turn.final_state,
        )  # fmt: skip
