"""What can be said of an engine before a job starts: its files, whether the model fits, how many replicas there are."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hpcjet.config.check import bad
from hpcjet.config.engine import Device, ServedConfig
from hpcjet.engine.devices import find_devices
from hpcjet.engine.fit import GIB, check_fit, describe
from hpcjet.engine.model import Model, find_model, read_model
from hpcjet.engine.placement import EngineNode, Placement, place, place_alone
from hpcjet.errors import ConfigError
from hpcjet.plan import NodeGroup

UNKNOWN_CORES = 128
"""Of a node whose number of CPUs the plan leaves to the site: enough for any replicas."""


def resolve(config: ServedConfig, *, here: Path) -> ServedConfig:
    """The config with paths that begin at the root: on the nodes another folder is the current one."""
    model, python = Path(config.model).expanduser(), config.python
    return replace(
        config,
        model=str(here / model) if (here / model).is_dir() else config.model,
        python=str(here / Path(python).expanduser()) if python and os.sep in python else python,
        image=here / config.image if config.image else None,
        chat_template=here / config.chat_template if config.chat_template else None,
        compile_cache=here / config.compile_cache if config.compile_cache else None,
    )


def check(
    config: ServedConfig, groups: Sequence[NodeGroup], *, local: bool, workers: Sequence[NodeGroup] = ()
) -> list[str]:
    """Lines that tell what the plan's nodes make of the engine. Raises ConfigError for what could not run there.

    `groups` are those with replicas in the head allocation, `workers` those that have allocations of their own;
    `local`: the nodes are this machine, so its GPUs can be asked.
    """
    for key, path in (("chat_template", config.chat_template), ("image", config.image)):
        if path is not None and not path.exists():
            raise ConfigError(f"engine.{key}={path} is not there; give the path of a file that the nodes see")
    model = read_model(find_model(config.model))
    if not local and config.device is not Device.cpu and all(group.gpus is None for group in [*groups, *workers]):
        return [f"{config.name}: {_weights(model)}; replicas are laid out when the nodes tell their GPUs"]
    nodes, gpu_bytes = (_this_node(config), _own_memory(config)) if local else (_nodes(groups), None)
    alone = {group.name: _alone(config, group) for group in workers}
    placed = place(config, nodes, grows=bool(workers)) if nodes else next(iter(alone.values()))
    lines = [_replicas(config, placed) + ("" if nodes else " on a node")]
    if workers:
        most = _most(config, len(placed.replicas) if nodes else 0, workers, alone)
        lines[0] += f"; up to {most} in all as nodes of {' and '.join(alone)} join"
    on_gpu = bool(placed.replicas[0].leader.gpus)
    known = int(config.gpu_memory_gb * GIB) if config.gpu_memory_gb else gpu_bytes
    if on_gpu and known:
        lines.append(describe(check_fit(model, config, gpu_bytes=known), config))
    else:
        hint = "; whether they fit is checked with engine.gpu_memory_gb, or on the node" if on_gpu else ""
        lines.append(_weights(model) + hint)
    if placed.idle_gpus and on_gpu:
        lines.append(f"{placed.idle_gpus} GPUs are left over: no whole replica can be made of them")
    return lines


def _alone(config: ServedConfig, group: NodeGroup) -> Placement:
    """The replicas of each node of a group that has allocations of its own."""
    size = config.tensor_parallel * config.pipeline_parallel
    if config.device is not Device.cpu and size > (group.gpus or 0) > 0:
        raise bad(
            "engine.tensor_parallel",
            config.tensor_parallel,
            f"with engine.pipeline_parallel={config.pipeline_parallel} a replica takes {size} GPUs, and a node of "
            f"{group.name} has {group.gpus}; all nodes of a replica must be of one job, which with cluster.form=jobs "
            "those of this group are not",
            "lower one of the two, have engine.group name the head's group, or use cluster.form=job or het",
        )
    return place_alone(config, _nodes([replace(group, nodes=1)])[0])


def _most(config: ServedConfig, now: int, workers: Sequence[NodeGroup], alone: Mapping[str, Placement]) -> int:
    """The most replicas that there will be; `now`: those of the head allocation."""
    room = now + sum(group.max_nodes * len(alone[group.name].replicas) for group in workers)
    asked = config.num_replicas or room
    if asked > room:
        raise bad(
            "engine.replicas", config.replicas, f"there is room for {room} when all nodes have joined",
            f"set engine.replicas={room}, or raise max of a group",
        )  # fmt: skip
    return asked


def _nodes(groups: Sequence[NodeGroup]) -> list[EngineNode]:
    return [
        EngineNode(
            host=f"{group.name}-{number}",
            gpus=tuple(map(str, range(group.gpus or 0))),
            cores=tuple(range(group.cpus or UNKNOWN_CORES)),
        )
        for group in groups
        for number in range(group.nodes)
    ]


def _this_node(config: ServedConfig) -> list[EngineNode]:
    devices = find_devices() if config.device is not Device.cpu else None
    cores = tuple(sorted(os.sched_getaffinity(0)))
    gpus, topology = (devices.names, devices.topology) if devices else ((), None)
    return [EngineNode(host="this machine", gpus=gpus, cores=cores, topology=topology)]


def _own_memory(config: ServedConfig) -> int | None:
    return None if config.device is Device.cpu else find_devices().memory_bytes


def _replicas(config: ServedConfig, placed: Placement) -> str:
    first = placed.replicas[0]
    each = f"{len(first.leader.gpus)} GPUs" if first.leader.gpus else f"{len(first.leader.cores)} cores, no GPU"
    spread = f" on each of {len(first.shares)} nodes" if len(first.shares) > 1 else ""
    count = len(placed.replicas)
    return f"{config.name}: {count} {'replica' if count == 1 else 'replicas'} with {each}{spread}"


def _weights(model: Model) -> str:
    return f"weights {model.weight_bytes / GIB:.1f} GiB"
