"""How many GPUs a job step has on this node, and the variables that name them, whatever their vendor."""

import re
from collections.abc import Mapping

from hpcjet.errors import BootstrapError

VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
"""NVIDIA, AMD (two), Intel. Slurm sets some of them, or all, with the same content."""
NO_GPU = ("nodevfiles", "none", "void", "n/a", "no_dev_files")
"""Texts that Slurm, Docker and some sites write where there is no GPU."""


def slurm_gpus(env: Mapping[str, str], host: str) -> tuple[int, list[str]]:
    """(GPUs of this step on this node, warnings): the lowest of what the variables tell.

    Raises BootstrapError where Slurm gave GPUs and its own list of devices says that there are none.
    """
    counted = gpu_count(env.get("SLURM_GPUS_ON_NODE", ""))
    listed = list_count(env.get("SLURM_STEP_GPUS", ""))
    pairs = {"SLURM_GPUS_ON_NODE": counted, "SLURM_STEP_GPUS": listed}
    given = {key: count for key, count in pairs.items() if count is not None}
    visible = {key: visible_count(env[key]) for key in VISIBLE if key in env}
    for key, count in visible.items():
        if any(given.values()) and not count and env[key]:
            raise BootstrapError(
                f"Slurm gave this step GPUs on {host} ({_told(given)}), but {key}={env[key]} says that there are none: "
                "ask the site whether its gres.conf names the devices, or launch with cluster.gpus_per_node=0"
            )
    told = {**given, **visible}
    if not told:
        # The job's list is that of its first node: the last resort.
        return list_count(env.get("SLURM_JOB_GPUS", "")) or 0, []
    lowest, warnings = min(told.values()), []
    if len(set(told.values())) > 1:
        warnings.append(f"the number of GPUs on {host} is told differently ({_told(told)}): {lowest} will be used")
    elif not lowest and list_count(env.get("SLURM_JOB_GPUS", "")):
        warnings.append(
            f"the job has GPUs on {host} (SLURM_JOB_GPUS={env['SLURM_JOB_GPUS']}), but this step has none: "
            "add --gpus-per-node or --gres to cluster.srun_args"
        )
    return lowest, warnings


def gpu_count(text: str) -> int | None:
    """Of a variable that counts: `4`, or as gres, `gpu:a100:4`. None for an empty or unreadable text."""
    return int(text) if text.isdigit() else list_count(text)


def list_count(text: str) -> int | None:
    """How many GPUs a list names: `0,2-3`, or `gpu:a100:2(IDX:0-1),gpu:v100:1`. None for an empty or unreadable one."""
    words = [word for word in re.sub(r"\([^)]*\)", "", text).split(",") if word.strip()]
    counts = [_word_count(word.strip()) for word in words]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def visible_count(text: str) -> int:
    """Devices that a list such as CUDA_VISIBLE_DEVICES shows: indices, ranges, UUIDs, tiles of a card (`0.1`)."""
    cards: set[str] = set()
    for word in (each.strip() for each in text.split(",")):
        if word.lower() in NO_GPU or word.startswith("-") or not word:
            break  # CUDA stops at the first that is none
        first, dash, last = word.partition("-")
        if dash and first.isdigit() and last.isdigit():
            cards.update(str(number) for number in range(int(first), int(last) + 1))
        else:
            cards.add(word.partition(".")[0])
    return len(cards)


def gpu_environment(env: Mapping[str, str], gpus: int) -> dict[str, str]:
    """The changes that Ray needs to read the lists of devices: no texts for "none", and HIP's list beside ROCR's."""
    if not gpus:
        return {key: "" for key in VISIBLE if env.get(key) and not visible_count(env[key])}
    if env.get("ROCR_VISIBLE_DEVICES") and "HIP_VISIBLE_DEVICES" not in env:
        # Ray refuses to start with ROCR's list alone. HIP counts within what ROCR shows, so it starts from 0.
        return {"HIP_VISIBLE_DEVICES": ",".join(map(str, range(visible_count(env["ROCR_VISIBLE_DEVICES"]))))}
    return {}


def _word_count(word: str) -> int | None:
    if re.fullmatch(r"\d+", word):
        return 1
    if found := re.fullmatch(r"(\d+)-(\d+)", word):
        return max(0, int(found[2]) - int(found[1]) + 1)
    if found := re.fullmatch(r"\w+(?::[\w.-]+)*?:(\d+)", word):
        return int(found[1])
    return 1 if re.fullmatch(r"gpu(:[\w.-]+)?|(GPU|MIG)-[\w/-]+", word) else None


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{key}: {count}" for key, count in counts.items())
