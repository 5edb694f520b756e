"""Environments with Gymnasium's interface: agents decide in the simulator, and in the training loop."""

from trimtab.learn.environments.allocate_env import AllocateEnv
from trimtab.learn.environments.dispatch_env import DispatchEnv, DispatchVectorEnv
from trimtab.learn.environments.match_env import MatchEnv, MatchVectorEnv

__all__ = ["AllocateEnv", "DispatchEnv", "DispatchVectorEnv", "MatchEnv", "MatchVectorEnv"]
