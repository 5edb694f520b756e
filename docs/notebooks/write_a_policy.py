# %% [markdown]
# # Write a policy
#
# A policy says which node gets a request. Here: the able node with the fewest requests in flight for its speed.

# %%
import trimtab as tt


class FewestForSpeed(tt.Policy):
    """Send each request to the able node with the fewest requests in flight, relative to its weight."""

    def choose(self, cluster, request):
        """Return a node."""
        return cluster.least(cluster.in_flight / cluster.weight, request)


# %%
policies = [FewestForSpeed, "least-connections", "least-expected-completion"]
comparison = tt.compare("tiny", policies=policies, seeds=5, sweep=(), jobs=1)
comparison

# %%
comparison.plot("completion_mean_s")

# %% [markdown]
# Evenness against speed, policy by policy:

# %%
comparison.plot("completion_p99_s", over="utilisation_var")
