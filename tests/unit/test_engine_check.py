"""What a launch and a dry run say of an engine before anything starts."""

import os
from pathlib import Path

import pytest
from test_engine_model_fit import QWEN3_32B, make

from hpcjet.config.compose import compose
from hpcjet.dryrun import dry_run_text
from hpcjet.engine.check import resolve
from hpcjet.errors import ConfigError
from hpcjet.start import engine_lines, plan_only

SLURM = ["+exp=swe", "engine=vllm", "cluster=slurm", "cluster.nodes=2", "cluster.gpus_per_node=4"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Qwen3-32B by its config, with weights that take no room on the disk."""
    return make(tmp_path / "Qwen3-32B", QWEN3_32B, 32_762_123_264, 32_762_123_264)


def lines(model: Path, *words: str) -> str:
    return "\n".join(engine_lines(compose([*SLURM, f"engine.model={model}", *words])))


def test_replicas_and_memory_are_told(model: Path) -> None:
    text = lines(model, "engine.tensor_parallel=2", "engine.gpu_memory_gb=80")
    assert "Qwen3-32B: 4 replicas with 2 GPUs" in text
    assert "weights 30.5 GiB" in text and "requests of 40,960 tokens at a time" in text
    spread = lines(model, "engine.tensor_parallel=4", "engine.pipeline_parallel=2")
    assert "1 replica with 4 GPUs on each of 2 nodes" in spread and "engine.gpu_memory_gb" in spread
    assert "1 GPUs are left over" not in spread
    assert "2 GPUs are left over" in lines(model, "cluster.gpus_per_node=5", "engine.tensor_parallel=4")


def test_without_a_number_of_gpus_the_nodes_decide(model: Path) -> None:
    text = lines(model, "cluster.gpus_per_node=null")
    assert text == "Qwen3-32B: weights 61.0 GiB; replicas are laid out when the nodes tell their GPUs"
    assert "1 replica with 4 cores, no GPU" in lines(
        model, "cluster.gpus_per_node=0", "cluster.cpus_per_node=8", "cluster.nodes=1"
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["engine.gpu_memory_gb=40"], ["does not fit", "61.0 GiB", "engine.tensor_parallel=4"]),
        (["engine.replicas=9"], ["engine.replicas=9", "room for 8"]),
        (["engine.tensor_parallel=16"], ["engine.tensor_parallel=16", "have 8"]),
        (["engine.chat_template=/nowhere.jinja"], ["engine.chat_template=/nowhere.jinja"]),
        (["engine.model=/nowhere"], ["engine.model=/nowhere"]),
    ],
    ids=["memory", "replicas", "width", "template", "model"],
)
def test_what_could_not_run_is_refused_at_the_launch_and_told_by_a_dry_run(
    model: Path, words: list[str], parts: list[str]
) -> None:
    config = compose([*SLURM, f"engine.model={model}", *words])
    with pytest.raises(ConfigError) as refused:
        engine_lines(config)
    assert all(part in str(refused.value) for part in parts), refused.value
    page = dry_run_text(plan_only(config), config, [])
    assert f"would not start: {refused.value}" in page


def test_runs_without_replicas_of_their_own_say_nothing(model: Path) -> None:
    for words in (["+exp=swe"], ["+exp=noop", "engine=vllm", f"engine.model={model}"]):
        assert engine_lines(compose(words)) == []
    assert engine_lines(compose([*SLURM, f"engine.model={model}", "exp.scaffold=reference"])) == []


def test_paths_begin_at_the_root_and_names_stay(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [*SLURM, "engine.model=Qwen3-32B", "engine.chat_template=t.jinja", "engine.image=i.sif"]
    config = compose([*words, "engine.python=venv/bin/python"]).engine
    found = resolve(config, here=model.parent)  # type: ignore[arg-type]
    assert found.model == str(model) and found.chat_template == model.parent / "t.jinja"
    assert found.python == str(model.parent / "venv/bin/python")
    plain = compose([*SLURM, "engine.model=Qwen/Qwen3-32B", "engine.python=vllm-cpu"]).engine
    kept = resolve(plain, here=Path(os.sep))  # type: ignore[arg-type]
    assert (kept.model, kept.python) == ("Qwen/Qwen3-32B", "vllm-cpu")


GROUPS = "+cluster.groups={head: {nodes: 1, gpus_per_node: 0}, gpu: {nodes: 1, max: 3, gpus_per_node: 4}}"


def grown(model: Path, *words: str) -> str:
    start = ["+exp=serve", "engine=vllm", "cluster=slurm", GROUPS, f"engine.model={model}"]
    return "\n".join(engine_lines(compose([*start, *words])))


def test_replicas_of_nodes_that_join_later_are_told(model: Path) -> None:
    text = grown(model, "cluster.form=jobs", "engine.tensor_parallel=2")
    assert "Qwen3-32B: 2 replicas with 2 GPUs on a node; up to 6 in all as nodes of gpu join" in text
    assert "up to 5 in all" in grown(model, "cluster.form=jobs", "engine.tensor_parallel=2", "engine.replicas=5")
    both = GROUPS.replace("gpus_per_node: 0", "gpus_per_node: 4")
    text = grown(model, "cluster.form=jobs", "engine.tensor_parallel=4", both.replace("+cluster", "++cluster"))
    assert "Qwen3-32B: 1 replica with 4 GPUs; up to 4 in all as nodes of gpu join" in text


def test_a_replica_over_several_nodes_is_refused_where_they_are_of_different_jobs(model: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        grown(model, "cluster.form=jobs", "engine.tensor_parallel=8")
    for part in (
        "engine.tensor_parallel=8",
        "gpu has 4",
        "cluster.form=jobs",
        "engine.group",
        "cluster.form=job or het",
    ):
        assert part in str(caught.value)
    with pytest.raises(ConfigError, match=r"engine\.replicas=4.*room for 3"):
        grown(model, "cluster.form=jobs", "engine.tensor_parallel=4", "engine.replicas=4")


def test_only_the_groups_with_replicas_count(model: Path) -> None:
    cpu = "+cluster.groups={head: {nodes: 1, cpus_per_node: 8}, cpu: {nodes: 2, cpus_per_node: 8}}"
    words = ["+exp=serve", "engine=vllm", "cluster=slurm", "cluster.gpus_per_node=0", "engine.device=cpu", cpu]
    text = engine_lines(compose([*words, f"engine.model={model}", "engine.group=cpu", "cluster.form=het"]))[0]
    assert "2 replicas with 4 cores" in text
