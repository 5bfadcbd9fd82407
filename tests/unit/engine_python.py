"""A Python that has both engines: each is a small server (engine_stub.py), and all that leads to it is real."""

import sys
from pathlib import Path

STUB = Path(__file__).with_name("engine_stub.py")
MODULES = {"vllm": "vllm/entrypoints/openai/api_server.py", "sglang": "sglang/launch_server.py"}
SERVER = """
import logging, os, runpy, sys
logging.basicConfig(level=logging.INFO)
logging.getLogger("server").info("arguments: %s", sys.argv)
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
key = os.environ.get("VLLM_API_KEY") or sys.argv[sys.argv.index("--api-key") + 1]
port = sys.argv[sys.argv.index("--port") + 1]
folder = os.environ["STUB_FOLDER"]
assert os.path.exists(sys.argv[sys.argv.index("--model" if "--model" in sys.argv else "--model-path") + 1])
sys.argv = ["stub", port, key, folder, {kind!r}]
runpy.run_path({stub!r}, run_name="__main__")
"""


def stub_python(folder: Path) -> Path:
    """Made in `folder`; the engine's environment must name a folder of its own as STUB_FOLDER."""
    for kind, module in MODULES.items():
        file = folder / "site" / module
        file.parent.mkdir(parents=True)
        file.write_text(SERVER.format(kind=kind, stub=str(STUB)))
    script = folder / "bin" / "python"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}/site" exec "{sys.executable}" "$@"\n')
    script.chmod(0o755)
    return script
