"""What replicas tell of their load, as a table and for Prometheus."""

import json
import re
from dataclasses import asdict
from pathlib import Path

from hpcjet.engine.gateway.metrics import Metrics
from hpcjet.engine.gateway.server import session_of
from hpcjet.engine.gauges import Load, parse_load, prometheus, rate
from hpcjet.engine.session import SESSION_HEADER

VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{engine="0",model_name="m"} 1.2e+06
vllm:generation_tokens_total{engine="0",model_name="m"} 900.0
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 2.0
sglang:num_queue_reqs{model_name="m"} NaN
sglang:token_usage{model_name="m"} 0.5
"""


def test_both_engines_say_it_in_their_own_words() -> None:
    assert parse_load(VLLM) == Load(running=4, waiting=7, kv_used=0.25, prompt_tokens=1.2e6, completion_tokens=900)
    assert parse_load(SGLANG) == Load(running=2, kv_used=0.5)
    assert parse_load("") == Load()


def test_a_rate_needs_two_looks_at_one_life() -> None:
    assert rate(Load(completion_tokens=900), Load(completion_tokens=1000), seconds=2) == 50
    assert rate(Load(completion_tokens=900), Load(completion_tokens=10), seconds=2) is None, "it was restarted"
    assert rate(Load(), Load(completion_tokens=10), seconds=2) is None
    assert rate(Load(completion_tokens=1), Load(completion_tokens=1), seconds=0) is None


def test_prometheus_gets_what_is_known() -> None:
    text = prometheus([{"name": "replica-0", "routed": True, "restarts": 1, "kv_used": 0.5, "completion_tokens": 9.0}])
    assert 'hpcjet_replica_up{replica="replica-0"} 1' in text
    assert 'hpcjet_replica_completion_tokens_total{replica="replica-0"} 9\n' in text
    assert 'hpcjet_replica_kv_used{replica="replica-0"} 0.5' in text and "waiting" not in text
    assert prometheus([]) == ""


def test_an_attempt_is_a_conversation_and_other_clients_name_theirs() -> None:
    assert session_of("task~0~1", {SESSION_HEADER: "other"}) == "task~0~1"
    assert session_of("serve", {SESSION_HEADER: "mine"}) == "serve~mine"
    assert session_of("serve", {}) == ""


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"hpcjet_[a-z_]+", target["expr"])
    }
    metrics = Metrics()
    metrics.ended["ok"] = metrics.retried["lost"] = metrics.tokens["prompt"] = 1
    whole = {"name": "replica-0", "routed": True, "restarts": 0, **asdict(parse_load(VLLM))}
    there = set(re.findall(r"(?m)^(hpcjet_[a-z_]+)", metrics.text([], {}) + prometheus([whole])))
    assert len(asked) > 8 and asked <= there, asked - there
