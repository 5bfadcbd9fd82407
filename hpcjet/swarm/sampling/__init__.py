"""Which fragments are learned from: drawing by priority, over one pool or many, and how often each may be drawn."""

from hpcjet.swarm.sampling.priorities import NothingToDraw, Priorities, Totals, draw_sharded, weights
from hpcjet.swarm.sampling.rate_limiter import RateLimiter

__all__ = ["NothingToDraw", "Priorities", "RateLimiter", "Totals", "draw_sharded", "weights"]
