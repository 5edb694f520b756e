"""What gateway.yaml declares of nodes, models and zones, as the dispatcher gets it."""

from math import inf

from trimtab.gateway.app.config_mapping import declared_of
from trimtab.gateway.config import parse_config
from trimtab.gateway.tenancy.tenants import Tenants

TEXT = """
nodes:
  - {name: a, url: 'http://x:1', models: [m], zone: us, nic_gib_per_s: 1.5, usd_per_hour: 2.5,
     capacity: {requests: 4, cpu_cores: 16, gpu_gib: 80}}
  - {name: b, url: 'http://x:2', models: [m, n]}
keys: [{name: t, env: T, zone: apac}]
zone: eu
zones:
  us: {ingress_gib_per_s: 0.5}
  eu: {rtt_s: {us: 0.09, apac: 0.2}}
models:
  m: {memory_gib: 15, demand: {cpu_cores: 2}}
"""


def test_nodes_models_and_zones() -> None:
    config = parse_config(TEXT, "g.yaml")
    first, second = (node.spec() for node in config.nodes)
    assert (first.zone, first.nic_gib_per_s, first.usd_per_hour) == ("us", 1.5, 2.5)
    assert first.resources == {"cpu_cores": 16.0, "gpu_gib": 80.0}
    assert (second.resources, second.zone, second.nic_gib_per_s, second.usd_per_hour) == ({}, "", 0.0, 0.0)
    declared = declared_of(config)
    assert (declared.zone, set(declared.zones)) == ("eu", {"eu", "us", "apac"})
    assert declared.rtt_s == {("eu", "us"): 0.09, ("eu", "apac"): 0.2}
    assert declared.zone_gib_per_s == {"us": 0.5, "eu": inf}
    assert (declared.demand, declared.model_gib) == ({"m": {"cpu_cores": 2.0}}, {"m": 15.0})
    tenant = Tenants(config, {"T": "key"}).named("t")
    assert tenant is not None
    assert tenant.zone == "apac"


def test_without_declarations_there_is_one_zone() -> None:
    declared = declared_of(parse_config("nodes: [{name: a, url: 'http://x:1'}]", "g.yaml"))
    assert (declared.zone, declared.zones, declared.demand, declared.rtt_s) == ("here", (), {}, {})
