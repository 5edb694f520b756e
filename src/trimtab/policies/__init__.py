"""The catalogue of policies: one file per published algorithm, found by walking this package."""

from trimtab.policies.catalogue import (
    CHAIN_COMPARISON,
    DEFAULT_COMPARISON,
    Description,
    Parameter,
    PolicySpec,
    canonical,
    describe,
    find,
    names,
    policy_class,
)

__all__ = [
    "CHAIN_COMPARISON",
    "DEFAULT_COMPARISON",
    "Description",
    "Parameter",
    "PolicySpec",
    "canonical",
    "describe",
    "find",
    "names",
    "policy_class",
]
