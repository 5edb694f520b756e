"""Lower bounds on mean completion time that no policy can beat on the requests of a run.

`reference` computes the bound of a built scenario. It takes the largest of the bounds on one `instance`,
the plain scheduling problem: B1 (`lagrangian`), B2 (`pooled_srpt`), both with proofs, and least service.
"""

from trimtab.experiments.bounds.bound import Bound, bound_of, compile_bounds, completion_bound, distance_frac

__all__ = ["Bound", "bound_of", "compile_bounds", "completion_bound", "distance_frac"]
