"""The table of replicas, as a person sees it."""

import io

from rich.console import Console

from hpcjet.console.replicas import replicas_table


def shown(data: dict[str, object], *, now: float) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(replicas_table(data, now=now))
    return out.getvalue()


def row(number: int, **changes: object) -> dict[str, object]:
    base = {"name": f"replica-{number}", "hosts": ["n1"], "state": "ready", "routed": True, "restarts": 0}
    return {**base, **changes}


def test_the_table_fits_and_says_what_is_known() -> None:
    hosts = [f"gpu-node-with-a-long-name-{number}" for number in range(4)]
    busy = row(0, hosts=hosts, tokens_per_s=1234.4, running=8.0, waiting=3.0, kv_used=0.456)
    text = shown({"model": "m", "updated": 100.0, "replicas": [busy, row(1, routed=False, restarts=2)]}, now=101)
    assert text.splitlines()[0].strip() == "m: 1 of 2 replicas serve"
    assert "1,234" in text and "46%" in text and "drains" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_old_word_says_its_age() -> None:
    text = shown({"model": "m", "updated": 100.0, "replicas": [row(0, state="starting", routed=False)]}, now=400)
    assert "as it was 5 min ago" in text and "starting" in text
