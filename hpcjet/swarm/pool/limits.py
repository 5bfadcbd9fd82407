"""Limits of pool, rate and staleness that cannot be met together, found at the start."""

from hpcjet.config.check import bad
from hpcjet.config.swarm.pool import PoolConfig, WhenFull
from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.swarm.sampling import RateLimiter


def rate_limiter(config: PoolConfig, staleness: StalenessConfig) -> RateLimiter | None:
    """None without a rate limit. Raises ConfigError for bounds under which both sides wait for ever."""
    rate = config.rate
    if not rate.error_buffer:
        return None
    return RateLimiter.around(
        rate.samples_per_insert, min_size=rate.min_size, error_buffer=rate.error_buffer,
        sample_batch=staleness.fragments,
    )  # fmt: skip


def check_limits(config: PoolConfig, staleness: StalenessConfig) -> None:
    """Raise ConfigError for limits under which acting and learning come to wait for each other for ever."""
    needed = staleness.fragments if config.max_times == 0 else -(-staleness.fragments // config.max_times)
    if config.max_times and needed > config.capacity:
        allowed = f"an update needs {needed} fragments (exp.staleness.fragments={staleness.fragments})"
        raise bad("exp.pool.capacity", config.capacity, allowed, "raise it")
    if not config.rate.error_buffer:
        return
    _check_with_budget(config, staleness)
    wanted, key = config.rate.samples_per_insert, "exp.pool.rate.samples_per_insert"
    if config.max_times and wanted > config.max_times:
        allowed = f"a fragment is sampled {config.max_times} times at most (exp.pool.max_times), and inserts would stop"
        raise bad(key, wanted, allowed, f"set exp.pool.max_times={int(-(-wanted // 1))}, or lower it")
    if config.when_full is WhenFull.wait and wanted < config.max_times:
        allowed = f"room comes only of fragments that were sampled {config.max_times} times (exp.pool.max_times)"
        raise bad(key, wanted, allowed, f"set it to {config.max_times}, or pool.when_full=evict")


def _check_with_budget(config: PoolConfig, staleness: StalenessConfig) -> None:
    """The bound on staleness lets (eta + 1) * B fragments in before the first update, then B for each."""
    if staleness.bound is None:
        return
    rate, batch = config.rate, staleness.fragments
    first, most = (staleness.bound + 1) * batch, rate.samples_per_insert
    if rate.min_size > first:
        allowed = f"no more than {first} fragments are begun before the first update (exp.staleness.eta, .fragments)"
        raise bad("exp.pool.rate.min_size", rate.min_size, allowed, "lower it, or set exp.staleness.mode=async")
    if most < 1 or most * first - batch < most * rate.min_size - rate.error_buffer:
        allowed = f"each version lets {batch} fragments in, and an update samples as many: it would wait for ever"
        raise bad("exp.pool.rate", rate, allowed, "raise error_buffer and samples_per_insert, or lower min_size")
