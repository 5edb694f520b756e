"""The workload of the case study, with parts of it switched on and off.

It is the built-in scenario aigc-images (100 nodes of four kinds, 10,000 images of unlike size) with resources
that nodes report and requests take, source images that travel over shared links, and images of three parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import yaml

from trimtab.experiments.scenario.loader import builtin_text

Values = dict[str, Any]

SWITCHES: Final = {
    "split": "segmentation, features and generation run as parts of a chain, side by side",
    "feature cache": "segmentation and features of an image seen before are used again",
    "parameter cache": "nodes keep models and adapters in all of their memory, not only those in use",
    "compression": "source images travel compressed",
}
CAUSES: Final = {
    "unlike tasks": "sizes, models and adapters differ",
    "unlike nodes": "four kinds of nodes",
    "changing load": "bursts of three times the calm rate",
    "congested network": "source images share two links of the zones",
}

CALM_RATE_PER_S: Final = 2.35  # whole images at the last of the loads
LOADS: Final = (0.5, 0.65, 0.8)

_NODES: Final = {  # made up: what a node of the kind has beside its accelerator
    "t4": {"cpu_cores": 16, "ram_gib": 64, "network_gib_per_s": 1.25},
    "a10": {"cpu_cores": 24, "ram_gib": 96, "network_gib_per_s": 1.25},
    "l40s": {"cpu_cores": 32, "ram_gib": 192, "network_gib_per_s": 3.0},
    "a100": {"cpu_cores": 64, "ram_gib": 512, "network_gib_per_s": 6.0},
}
_DEMAND: Final = {  # made up, likewise: of an image while it holds its slot
    "sd15": {"cpu_cores": 4, "ram_gib": 12},
    "sdxl": {"cpu_cores": 6, "ram_gib": 24},
    "flux": {"cpu_cores": 8, "ram_gib": 48},
}
_ONE_MODEL_GIB: Final = {"t4": 7.5, "a10": 7.5, "l40s": 24.0, "a100": 24.0}
_SLOWER: Final = {"t4": 1.5, "a10": 1.2, "l40s": 1.0, "a100": 1.0}
# Seconds on the fastest node, of those that an image takes whatever its size (13 of 14 s in GenTD26); GiB and
# seconds to load the part's model. Made up.
_PARTS: Final = {"segment": (3.0, 2.5, 5.0), "features": (2.0, 1.7, 4.0)}
_PART_OVERHEAD_S: Final = 0.3  # a part starts by itself
_SOURCE_GIB: Final = 0.05  # a source image, raw
_ZONE_LINK: Final = {"ingress_gib_per_s": 0.35}
_COMPRESSED_FRAC: Final = 0.45  # lossless, as of photographs
_UNPACK_S: Final = 0.15


def workload(on: Collection[str], load: float, requests: int) -> Values:
    """Values of a scenario. All switches meet the same arrivals.

    Args:
        on: what is switched on, of SWITCHES.
        load: offered load of whole images without parts.
        requests: number of images.
    """
    values = _whole_images(load, requests)
    if "parameter cache" not in on:
        types = values["cluster"]["types"]
        values["cluster"]["types"] = {
            name: one | {"memory_gib": _ONE_MODEL_GIB[name]} for name, one in types.items()
        }
    if "compression" in on:
        values["workload"]["payload_gib"]["mean"] *= _COMPRESSED_FRAC
        values["classes"] = {name: _longer(one, _UNPACK_S) for name, one in values["classes"].items()}
    return _split(values, "feature cache" in on) if "split" in on else values


def with_causes(causes: Collection[str], load: float, requests: int) -> Values:
    """Values of a scenario of whole images, with these CAUSES of imbalance and none else, at its own load."""
    values = _whole_images(load, requests)
    generate = values["workload"]["generate"]
    if "unlike nodes" not in causes:
        one = values["cluster"]["types"]["l40s"]
        nodes = [group | {"type": "l40s"} for group in values["cluster"]["nodes"]]
        values["cluster"] |= {"types": {"l40s": one}, "nodes": nodes}
        for of in values["classes"].values():
            of["fixed_s"], of["unit_s"] = ({"l40s": of[key]["l40s"]} for key in ("fixed_s", "unit_s"))
        for group in nodes:
            group["nic_gib_per_s"] = _NODES["l40s"]["network_gib_per_s"]
    if "unlike tasks" not in causes:
        values["classes"] = {"sdxl": {k: v for k, v in values["classes"]["sdxl"].items() if k != "adapter"}}
        values["models"] = {"sdxl": values["models"]["sdxl"] | {"count": 1}}
        values["adapters"] = {}
        values["workload"] |= {"service_cv": 0.0, "estimate_cv": 0.0}
        generate |= {"mix": {"sdxl": {"share": 1.0}}, "size": 45.0}
    if "changing load" not in causes:
        generate["arrival"] = {"process": "poisson", "rate_per_s": 1.0}
    if "congested network" not in causes:
        del values["workload"]["payload_gib"]
    values["workload"]["load"] = load
    return values


def _whole_images(load: float, requests: int) -> Values:
    base: Values = yaml.safe_load(builtin_text("aigc-images"))
    calm = CALM_RATE_PER_S * load / LOADS[-1]
    arrival = {"process": "mmpp", "rates_per_s": [calm, 3 * calm], "sojourns_s": [240, 60]}
    base["workload"]["generate"] |= {"requests": requests, "arrival": arrival}
    base["workload"]["load"] = None
    base["workload"]["payload_gib"] = {"distribution": "lognormal", "mean": _SOURCE_GIB, "cv": 1}
    nodes = []
    for group in base["cluster"]["nodes"]:
        kind, half = group["type"], group["count"] // 2
        for zone, count in (("east", half), ("west", group["count"] - half)):
            place = {
                "name": f"{kind}-{zone}",
                "zone": zone,
                "nic_gib_per_s": _NODES[kind]["network_gib_per_s"],
            }
            nodes.append({"type": kind, "count": count, **place})
    types = {name: one | {"resources": _NODES[name]} for name, one in base["cluster"]["types"].items()}
    base["cluster"] = {
        "types": types,
        "nodes": nodes,
        "zones": dict.fromkeys(("east", "west"), _ZONE_LINK),
    }
    base["classes"] = {name: one | {"demand": _DEMAND[name]} for name, one in base["classes"].items()}
    return base | {"name": "case", "sweep": {"loads": []}, "policies": []}


def _longer(one: Values, seconds: float) -> Values:
    fixed = {name: None if given is None else given + seconds for name, given in one["fixed_s"].items()}
    return one | {"fixed_s": fixed}


def _split(values: Values, reuse: bool) -> Values:
    """Each class becomes a chain of three stages side by side; its own is shorter by what the others take."""
    classes: Values = {}
    models = dict(values["models"])
    for name, (seconds, gib, load_s) in _PARTS.items():
        models[name] = {"memory_gib": gib, "load_s": load_s}
        fixed = {kind: _PART_OVERHEAD_S + seconds * slower for kind, slower in _SLOWER.items()}
        classes[name] = {
            "model": name,
            "fixed_s": fixed,
            "unit_s": 0.0,
            "demand": {"cpu_cores": 2, "ram_gib": 4},
        }
    apart_s = sum(seconds for seconds, _, _ in _PARTS.values())
    chains, mix = {}, {}
    generate = values["workload"]["generate"]
    for name, one in values["classes"].items():
        shorter = {
            kind: None if given is None else given - apart_s * _SLOWER[kind]
            for kind, given in one["fixed_s"].items()
        }
        own = {key: value for key, value in one.items() if key != "slo_s"}
        classes[name] = own | {"fixed_s": shorter}
        stages = {part: {"class": part, "size": 1} for part in _PARTS}
        stages["generate"] = {"class": name, "size": generate["size"], "deterministic": False}
        chains[f"image-{name}"] = {
            "slo_s": one["slo_s"],
            "stages": stages,
            "contents": {"count": 4000, "zipf": 0.9},
        }
        mix[f"image-{name}"] = {"share": generate["mix"][name]["share"]}
    parts: Mapping[str, Any] = {key: value for key, value in generate.items() if key != "size"}
    split = values | {
        "models": models,
        "classes": classes,
        "chains": chains,
        "workload": values["workload"] | {"generate": {**parts, "mix": mix}},
    }
    return split | ({"serving": {"stage_results": {"gib": 64}}} if reuse else {})
