import pytest

from hpcjet.config.compose import compose
from hpcjet.config.engine import OpenAIConfig, OracleConfig, OracleMode
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.errors import ConfigError

OPENAI = ("engine=openai", "engine.model=m")


def test_oracle_is_composed_with_its_own_class_and_values() -> None:
    engine = compose(
        ["exp=swe", "engine=oracle", "engine.mode=mixed", "engine.latency_s=0.5", "engine.retries=1"]
    ).engine
    assert isinstance(engine, OracleConfig)
    assert (engine.mode, engine.latency_s, engine.retries) == (OracleMode.mixed, 0.5, 1)


def test_openai_is_composed_and_survives_storage() -> None:
    config = compose(["exp=swe", *OPENAI, "engine.base_url=http://h:1/v1", "engine.temperature=0.5"])
    assert isinstance(config.engine, OpenAIConfig)
    assert from_dict(to_dict(config)).engine == config.engine


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (["engine.mode=right"], ["engine.mode", "solve", "mixed"]),
        (["engine.latency_s=-1"], ["engine.latency_s=-1", "0 to 3600"]),
        (["engine.temperature=3"], ["engine.temperature=3", "0 to 2"]),
        (["engine.max_tokens=0"], ["engine.max_tokens=0", "from 1"]),
        (["engine.retries=-1"], ["engine.retries=-1", "0 to 100"]),
        (["engine.request_timeout_s=0"], ["engine.request_timeout_s=0", "0.1"]),
        (["engine.start_timeout_s=0"], ["engine.start_timeout_s=0", "from 1"]),
        (["engine.base_url=http://h/v1"], ["engine.base_url", "engine=openai"]),
        (["engine=openai"], ["engine.model", "engine.model="]),
        (["engine=openai", "engine.model="], ["engine.model=", "/models"]),
        ([*OPENAI, "engine.mode=solve"], ["engine.mode", "engine=oracle"]),
        ([*OPENAI, "engine.base_url=ftp://h"], ["engine.base_url=ftp://h", "http(s)://"]),
        ([*OPENAI, "engine.base_url=http://"], ["engine.base_url=http://", "http(s)://"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0].startswith("engine") else "",
)
def test_refusals_name_key_value_and_what_is_allowed(overrides: list[str], parts: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["exp=swe", *overrides])
    assert all(part in str(refused.value) for part in parts), refused.value


@pytest.mark.parametrize(
    ("override", "secret"),
    [("engine.base_url=https://me:hunter2@h/v1", "hunter2"), ("engine.api_key_env=sk-proj-hunter2", "hunter2")],
    ids=["password in address", "key instead of its variable"],
)
def test_a_refusal_does_not_show_a_secret(override: str, secret: str) -> None:
    with pytest.raises(ConfigError) as refused:
        compose(["exp=swe", *OPENAI, override])
    assert secret not in str(refused.value)
    assert "engine.api_key_env" in str(refused.value)
