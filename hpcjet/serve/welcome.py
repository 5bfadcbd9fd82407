"""What a person is told once the model answers. Pure."""

from pathlib import Path
from urllib.parse import urlsplit

TEXT = """\
{model} answers at {url}
  the key is in {key_file}, and good until {until}

from another machine, tunnel through the login node:
  ssh -N -L {port}:{host}:{port} LOGIN_NODE

then, or on a node of this cluster with {host} in place of localhost:
  curl -H "Authorization: Bearer $(cat {key_file})" -H 'Content-Type: application/json' \\
    http://localhost:{port}{path}/chat/completions \\
    -d '{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'

metrics for Prometheus: http://{host}:{port}/metrics, key in {metrics_key_file}
"""


def welcome(*, model: str, url: str, key_file: Path, metrics_key_file: Path, until: str) -> str:
    """`url` is the base URL, up to and with /v1."""
    parts = urlsplit(url)
    return TEXT.format(
        model=model, url=url, key_file=key_file, metrics_key_file=metrics_key_file, until=until, host=parts.hostname,
        port=parts.port, path=parts.path,
    )  # fmt: skip
