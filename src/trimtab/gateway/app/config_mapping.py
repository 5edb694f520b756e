"""Maps the configuration to the option classes of the gateway's packages."""

from __future__ import annotations

import sys
from math import inf

from trimtab.domain.learned_estimates import LearnedEstimates
from trimtab.gateway.config import GatewayConfig
from trimtab.gateway.config.node_entries import KubernetesEntry
from trimtab.gateway.config.traffic import MIB
from trimtab.gateway.decide.dispatch_rules import HERE, Declared, DispatchRules, PolicyChoice, policy_choice
from trimtab.gateway.http.cached_answers import ResultCacheOptions
from trimtab.gateway.http.connection_context import Settings, Timeouts
from trimtab.gateway.nodes.fleet import FleetOptions
from trimtab.gateway.nodes.health_checks import HealthCheckOptions
from trimtab.gateway.nodes.health_manager import HealthManagerOptions
from trimtab.gateway.nodes.health_rule import SlowStartOptions
from trimtab.gateway.nodes.outlier_ejection import EjectionOptions
from trimtab.gateway.nodes.polling import PollingOptions
from trimtab.gateway.picker.picker_settings import PickerSettings
from trimtab.gateway.record.recorder import DAY_S, MOST_FILES, RecordSettings
from trimtab.gateway.tenancy.tenants import Prices, TokenPrice
from trimtab.live.program_host import NodeSource

UNBOUNDED = 1 << 20  # requests that may wait where the configuration sets no bound


def policies_of(config: GatewayConfig) -> list[str]:
    """The specs of all policies that must be compiled, as `find` takes them."""
    rules = rules_of(config)
    shadow = [] if config.shadow is None else [config.shadow.policy]
    return [*(choice.spec for choice in rules.choices()), *shadow]


def rules_of(config: GatewayConfig) -> DispatchRules:
    """The dispatcher's rules. Raises UsageError for an unknown policy."""
    shadow = None if config.shadow is None else config.shadow.policy
    by_route = {name: route.policy for name, route in config.routing().items() if route.policy is not None}
    queue, fairness = config.queue, config.fairness
    return DispatchRules(
        default=_choice(config, config.policy.default, shadow),
        by_model={model: _choice(config, spec, shadow) for model, spec in config.policy.models.items()},
        by_route={name: _choice(config, spec, shadow) for name, spec in by_route.items()},
        held_max=UNBOUNDED if queue.max_requests is None else queue.max_requests,
        max_wait_s=queue.max_wait_s,
        max_wait_no_ready_node_s=queue.max_wait_no_ready_node_s,
        reserve_frac=queue.background_reserve_frac,
        prompt_weight=fairness.prompt_weight,
        output_weight=fairness.output_weight,
        holding_cost=fairness.holding_cost,
        prefix_blocks=config.prefix_cache.max_blocks if config.prefix_cache.enabled else 0,
        declared=declared_of(config),
        queues=config.queues,
    )


def learned_of(config: GatewayConfig) -> LearnedEstimates | None:
    """What other sites learned. Raises UsageError where the file is none, or gone meanwhile."""
    return None if config.learned is None else LearnedEstimates.read(str(config.learned), "learned")


def declared_of(config: GatewayConfig) -> Declared:
    """The declared properties of models and zones."""
    zones = config.zones
    return Declared(
        demand={name: model.demand for name, model in config.models.items()},
        model_gib={name: model.memory_gib for name, model in config.models.items()},
        zone=config.zone or HERE,
        zones=config.zones_in_use(),
        rtt_s={(a, b): rtt_s for a, zone in zones.items() for b, rtt_s in zone.rtt_s.items()},
        windows=tuple(entry.window() for entry in config.maintenance),
        zone_gib_per_s={name: zone.ingress_gib_per_s or inf for name, zone in zones.items()},
    )


def prices_of(config: GatewayConfig) -> Prices:
    """Prices of the models that have both."""
    return {
        name: TokenPrice(prompt / 1e6, output / 1e6)
        for name, model in config.models.items()
        if (prompt := model.usd_per_million_prompt_tokens) is not None
        and (output := model.usd_per_million_output_tokens) is not None
    }


def _choice(config: GatewayConfig, spec: str, shadow: str | None) -> PolicyChoice:
    return policy_choice(config.with_order(spec), shadow)


def settings_of(config: GatewayConfig) -> Settings:
    """The data plane's settings."""
    limits, retries, hedge = config.limits, config.retries, config.hedge
    return Settings(
        head_bytes=limits.head_bytes,
        header_count=limits.headers,
        body_bytes=limits.body_bytes,
        buffered_bytes=limits.buffered_bytes,
        connections=limits.connections,
        request_read_timeout_s=limits.request_read_timeout_s,
        timeouts=Timeouts(**config.timeouts.default.model_dump()),
        model_timeouts={m: Timeouts(**config.timeouts.of(m).model_dump()) for m in config.timeouts.models},
        max_retries=retries.max_per_request,
        retry_budget_frac=retries.budget_frac,
        hedge_delay_s=hedge.delay_s if hedge.enabled else 0.0,
        hedge_max_frac=hedge.max_frac if hedge.enabled else 0.0,
    )


def picker_settings(config: GatewayConfig) -> PickerSettings:
    """The endpoint picker's settings."""
    limits, queue = config.limits, config.queue
    return PickerSettings(
        config.picker.max_endpoints, limits.body_bytes, limits.buffered_bytes, held_s=queue.max_wait_s
    )


def result_cache_options(config: GatewayConfig) -> ResultCacheOptions:
    """The result cache's options."""
    routes = frozenset(name for name, route in config.routes.items() if route.cache)
    return ResultCacheOptions(routes, **config.result_cache.model_dump())


def fleet_options(config: GatewayConfig) -> FleetOptions:
    """The fleet's options."""
    return FleetOptions(config.drain_s, SlowStartOptions(slow_start_s=config.ejection.slow_start_s))


def health_manager_options(config: GatewayConfig) -> HealthManagerOptions:
    """The options of health checks and related parts."""
    health, ejection, polling = config.health, config.ejection, config.polling
    return HealthManagerOptions(
        health=HealthCheckOptions(
            period_s=health.period_s,
            timeout_s=health.timeout_s,
            unhealthy_threshold=health.unhealthy_threshold,
            healthy_threshold=health.healthy_threshold,
        ),
        ejection=EjectionOptions(
            is_on=ejection.enabled,
            consecutive=ejection.consecutive_failures,
            base_ejection_s=ejection.base_ejection_s,
            max_ejection_s=ejection.max_ejection_s,
            max_ejected_frac=ejection.max_ejected_frac,
        ),
        polling=PollingOptions(period_s=polling.period_s, timeout_s=polling.timeout_s),
    )


def record_settings(config: GatewayConfig) -> RecordSettings | None:
    """The recording's settings; None = no recording."""
    record = config.record
    if record is None:
        return None
    is_bounded = record.keep_days is not None or record.keep_gib is not None
    return RecordSettings(
        record.folder,
        max_bytes=int(record.rotate_mib * MIB),
        max_files=record.max_files or (sys.maxsize if is_bounded else MOST_FILES),
        keep_s=inf if record.keep_days is None else record.keep_days * DAY_S,
        keep_bytes=inf if record.keep_gib is None else record.keep_gib * 1024 * MIB,
        redact=record.redact,
    )


def pods_source(entry: KubernetesEntry) -> NodeSource:
    """The pods that an entry names. Raises MissingExtra."""
    from trimtab.clusters.kube.ready_pods import ReadyPods, Wanted

    kinds = {"selector": entry.selector, "service": entry.service, "pool": entry.pool}
    kind, name = next((kind, name) for kind, name in kinds.items() if name)
    return ReadyPods(Wanted(kind, name, entry.namespace, str(entry.port), entry.kubeconfig, entry.context))
