"""Erlang's formulas of loss and of waiting, and their inverses.

Source: A. K. Erlang (1917), see Kleinrock, Queueing Systems vol. 1 (1975), ch. 3. The loss is computed by the
recursion on its inverse, 1/B(k) = 1 + k / a · 1/B(k − 1), whose terms are all positive: it is stable for any
number of servers. Cost: O(servers); inverses O(servers found) or O(servers · log(1/precision)).

`offered` is λ E[S], the offered load in servers. The `_unchecked` functions are
for kernels; they assume a whole number of servers > 0 and `offered` ≥ 0.
"""

from __future__ import annotations

from math import ceil, inf

from scipy.optimize import brentq

from trimtab.compiled.kernel import kernel
from trimtab.errors import UsageError
from trimtab.forecast.queueing.station import checked_at_least, checked_frac, checked_servers

MOST_SERVERS = 10_000_000  # where an inverse gives up: the recursion takes some 50 ms until there


@kernel
def erlang_b_unchecked(servers: int, offered: float) -> float:
    """`erlang_b` for kernels."""
    if offered == 0.0:
        return 0.0
    inverse = 1.0
    for k in range(1, servers + 1):
        inverse = 1.0 + k / offered * inverse
    return 1.0 / inverse


@kernel
def erlang_c_unchecked(servers: int, offered: float) -> float:
    """`erlang_c` for kernels."""
    if offered >= servers:
        return 1.0
    loss = erlang_b_unchecked(servers, offered)
    return loss / (1.0 - offered / servers * (1.0 - loss))


@kernel
def servers_for_loss(offered: float, loss_frac: float, most: int) -> int:
    """The fewest servers, at most `most`, that lose no more than this share: `erlang_b_servers`, compiled."""
    inverse, k = 1.0, 0
    while inverse * loss_frac < 1.0 and k < most:
        k += 1
        inverse = 1.0 + k / offered * inverse
    return k


def erlang_b(servers: int, offered: float) -> float:
    """Probability of loss in M/G/c/c, whatever the distribution of service. Raises UsageError."""
    return erlang_b_unchecked(checked_servers(servers), checked_at_least(0.0, offered, "offered"))


def erlang_c(servers: int, offered: float) -> float:
    """Probability of waiting in M/M/c; 1 if the offered load is at least the number of servers.

    Raises UsageError.
    """
    return erlang_c_unchecked(checked_servers(servers), checked_at_least(0.0, offered, "offered"))


def erlang_b_servers(offered: float, loss_frac: float) -> int:
    """The least number of servers with at most this loss probability. Raises UsageError."""
    offered = checked_at_least(0.0, offered, "offered")
    loss_frac = checked_frac(loss_frac, "loss_frac")
    if offered == 0.0 or loss_frac == 1.0:
        return 0
    servers = servers_for_loss(offered, loss_frac, MOST_SERVERS)
    if servers == MOST_SERVERS:
        raise UsageError(
            "too much for this formula", field="offered", value=offered, expected=f"< {MOST_SERVERS:,}"
        )
    return servers


def erlang_b_offered(servers: int, loss_frac: float) -> float:
    """The offered load of which the servers lose this fraction; inf for 1. Raises UsageError."""
    servers = checked_servers(servers)
    loss_frac = checked_frac(loss_frac, "loss_frac")
    if loss_frac == 1.0:
        return inf
    most = (servers + 1.0) / (1.0 - loss_frac)  # what is carried, a (1 − B), never exceeds the servers
    return float(brentq(lambda a: erlang_b_unchecked(servers, a) - loss_frac, 0.0, most, xtol=1e-13 * most))


def erlang_c_servers(offered: float, wait_frac: float) -> int:
    """The least number of servers with at most this probability of waiting. Raises UsageError.

    By bisection above the offered load, where the probability of waiting falls with every server.
    """
    offered = checked_at_least(0.0, offered, "offered")
    wait_frac = checked_frac(wait_frac, "wait_frac")
    few, enough = max(1, ceil(offered)) - 1, max(1, ceil(offered))
    while erlang_c(enough, offered) > wait_frac:
        few, enough = enough, 2 * enough
        if few > MOST_SERVERS:
            raise UsageError(
                "too much for this formula", field="offered", value=offered, expected=f"< {MOST_SERVERS:,}"
            )
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if erlang_c(middle, offered) <= wait_frac else (middle, enough)
    return enough
