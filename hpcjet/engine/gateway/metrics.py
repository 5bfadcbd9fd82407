"""Counters of a gateway, in the text format of Prometheus."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from hpcjet.engine.router import RouterWorker

TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BOUNDS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_MOST_REPLICAS = 4096


class Histogram:
    """Counts of seconds by upper bounds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        self.total += seconds

    def lines(self, name: str) -> Iterable[str]:
        done = 0
        for bound, count in zip((*_BOUNDS_S, float("inf")), self.counts, strict=True):
            done += count
            yield f'{name}_bucket{{le="{"+Inf" if bound == float("inf") else f"{bound:g}"}"}} {done}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {done}"


class Metrics:
    """What a gateway counts."""

    def __init__(self) -> None:
        self.ended: Counter[str] = Counter()
        """Requests by how they ended: ok, or the class of their trouble."""
        self.retried: Counter[str] = Counter()
        self.replicas: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.in_flight: Counter[str] = Counter()
        """By the replica that answered the attempt last: the router tells where a request went when it is answered."""
        self.seconds = Histogram()
        self.first_byte = Histogram()

    def answered(self, *, replica: str, usage: Mapping[str, object] | None, seconds: float) -> None:
        self.seconds.add(seconds)
        if replica and (replica in self.replicas or len(self.replicas) < _MOST_REPLICAS):
            self.replicas[replica] += 1
        for kind in ("prompt", "completion"):
            count = (usage or {}).get(f"{kind}_tokens")
            if isinstance(count, int):
                self.tokens[kind] += count

    def text(self, workers: Iterable[RouterWorker], extra: Mapping[str, float]) -> str:
        """`workers`: as the router sees them; `extra`: further gauges by their whole names."""
        lines = [
            *_counter("requests_total", "Requests by how they ended.", "class", self.ended),
            *_counter("retries_total", "Tries after the first, by what made them necessary.", "class", self.retried),
            *_counter("tokens_total", "Tokens as the engine counts them.", "kind", self.tokens),
            *_counter("replica_answers_total", "Answers by the replica that gave them.", "replica", self.replicas),
            *_head("request_seconds", "Seconds until a request was answered in full.", "histogram"),
            *self.seconds.lines("hpcjet_gateway_request_seconds"),
            *_head("first_byte_seconds", "Seconds until a stream began.", "histogram"),
            *self.first_byte.lines("hpcjet_gateway_first_byte_seconds"),
            *_head("in_flight", "Requests under way.", "gauge"),
            f"hpcjet_gateway_in_flight {self.in_flight.total()}",
            *_head(
                "replica_in_flight", "Requests under way, by the replica that answered their attempt last.", "gauge"
            ),
            *(f"hpcjet_gateway_replica_in_flight{_label('replica', each)} {n}" for each, n in self.in_flight.items()),
            *_head("replica_healthy", "Whether the router sends requests to a replica, by its address.", "gauge"),
            *(f"hpcjet_gateway_replica_healthy{_label('url', each.url)} {int(each.healthy)}" for each in workers),
        ]
        for name, number in extra.items():
            lines += [*_head(name, name.replace("_", " ") + ".", "counter"), f"hpcjet_gateway_{name} {number:g}"]
        return "\n".join(lines) + "\n"


def _head(name: str, what: str, kind: str) -> list[str]:
    return [f"# HELP hpcjet_gateway_{name} {what}", f"# TYPE hpcjet_gateway_{name} {kind}"]


def _counter(name: str, what: str, label: str, counts: Mapping[str, int]) -> list[str]:
    lines = [f"hpcjet_gateway_{name}{_label(label, each)} {count}" for each, count in sorted(counts.items())]
    return _head(name, what, "counter") + lines


def _label(name: str, value: str) -> str:
    plain = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'{{{name}="{plain}"}}'
