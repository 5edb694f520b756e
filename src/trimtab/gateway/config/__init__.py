"""gateway.yaml: the gateway's configuration, validated like scenarios."""

from trimtab.gateway.config.files import (
    Overrides,
    config_for_backends,
    config_schema,
    config_warnings,
    example_text,
    load_config,
    node_specs,
    parse_config,
    require_keys,
)
from trimtab.gateway.config.gateway import GatewayConfig
from trimtab.gateway.config.keys import AdminSpec, KeySpec, PrivacySpec, Secret, TenantLimits, digest_of

__all__ = [
    "AdminSpec",
    "GatewayConfig",
    "KeySpec",
    "Overrides",
    "PrivacySpec",
    "Secret",
    "TenantLimits",
    "config_for_backends",
    "config_schema",
    "config_warnings",
    "digest_of",
    "example_text",
    "load_config",
    "node_specs",
    "parse_config",
    "require_keys",
]
