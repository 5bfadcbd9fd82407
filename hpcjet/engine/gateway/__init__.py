"""The gateway: an address and a key for each attempt, its requests forwarded and recorded."""

from hpcjet.engine.gateway.calls import Call, read_calls
from hpcjet.engine.gateway.fields import Dialect
from hpcjet.engine.gateway.gateway import Gateway
from hpcjet.engine.gateway.keys import attempt_key, attempt_url
from hpcjet.engine.gateway.settings import Limits

__all__ = ["Call", "Dialect", "Gateway", "Limits", "attempt_key", "attempt_url", "read_calls"]
