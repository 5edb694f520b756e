"""Learning, for researchers (extra `learn`): environments where agents decide, and methods to train them.

No other package imports Gymnasium: a trained policy runs in every host without this extra. The import of this
package registers the environments with Gymnasium, where that is installed: `federated` does without it.
"""

from importlib.util import find_spec

if find_spec("gymnasium") is not None:
    from gymnasium import register

    _HOME = "trimtab.learn.environments"

    register("trimtab/Allocate-v0", f"{_HOME}:AllocateEnv")
    register("trimtab/Dispatch-v0", f"{_HOME}:DispatchEnv", vector_entry_point=f"{_HOME}:DispatchVectorEnv")
    register("trimtab/Match-v0", f"{_HOME}:MatchEnv", vector_entry_point=f"{_HOME}:MatchVectorEnv")
