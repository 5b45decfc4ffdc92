"""What GPU is here, before anything is downloaded for it. ``web/probe.js`` says the same to a page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadArgument
from .limits import DeviceLimits

ADAPTERS = ("auto", "software", "none")
SOFTWARE_NAMES = ("swiftshader", "llvmpipe", "lavapipe", "basic render", "software")
GIB = 1 << 30
TIERS = (("high", GIB), ("medium", GIB // 2), ("low", 0))
"""Smallest maxStorageBufferBindingSize of each tier for a model with ``TIER_WEIGHTS``."""
TIER_WEIGHTS = 870_000_000
"""Bytes of the 1.5B class of models, in 4 bits; the tiers of others are scaled by theirs."""
NO_LIMIT = 1 << 62
WORKGROUP_STORAGE = 32768
"""Bytes that a kernel may have at most: what nearly all GPUs offer, and what no kernel here has a use for more of."""
PACKED_DOT = "packed_4x8_integer_dot_product"
PACKED_DOT_VENDORS = ("nvidia",)
"""Where products of four bytes were measured to be faster. Browsers offer them everywhere, and where a GPU has no
instruction for them put many in its place, which a page cannot see."""
ANSWER_SECONDS = 10.0
"""A browser whose GPU process hangs answers never."""


@dataclass(frozen=True)
class Probe:
    """The adapter found, if any. ``usable`` is whether models may run on it; ``reason`` says why (not), for people.

    ``limits`` and ``features`` are the adapter's, ``languages`` the browser's features of WGSL; ``handle`` is the
    GPUAdapter itself, good for one device.
    """

    tier: str
    adapter: str
    software: bool
    usable: bool
    reason: str
    features: frozenset[str] = frozenset()
    limits: dict[str, int] = field(default_factory=dict)
    subgroups: tuple[int, int] = (0, 0)
    handle: Any = None
    languages: frozenset[str] = frozenset()

    def wanted_limits(self) -> dict[str, int]:
        """What a device is asked for: the adapter's limits on buffers, and no more workgroup memory than is of use."""
        wanted = dict.fromkeys(("maxBufferSize", "maxStorageBufferBindingSize"), NO_LIMIT)
        wanted["maxComputeWorkgroupStorageSize"] = WORKGROUP_STORAGE
        return {key: min(most, self.limits[key]) for key, most in wanted.items() if key in self.limits}

    def device_limits(self) -> DeviceLimits:
        offered = "subgroups" in self.features
        return DeviceLimits(
            max_binding=self.limits.get("maxStorageBufferBindingSize", 128 << 20),
            max_buffer=self.limits.get("maxBufferSize", 256 << 20),
            max_workgroup_storage=self.wanted_limits().get("maxComputeWorkgroupStorageSize", 16384),
            subgroup=self.subgroups[0] if offered else 0,
            subgroup_max=self.subgroups[1] if offered else 0,
            f16="shader-f16" in self.features,
            packed_dot=PACKED_DOT in self.languages and self.adapter.lower().startswith(PACKED_DOT_VENDORS),
            software=self.software,
        )


def _absent(reason: str) -> Probe:
    return Probe("unsupported", "", False, False, reason)


def tier_of(binding: int, weights: int | None = None) -> str:
    """``high``, ``medium`` or ``low``, by a maxStorageBufferBindingSize for a model with ``weights`` bytes."""
    scale = (weights or TIER_WEIGHTS) / TIER_WEIGHTS
    return next(tier for tier, least in TIERS if binding >= least * scale)


async def probe(adapter: str = "auto", weights: int | None = None) -> Probe:
    """Asks the browser for a GPU. ``adapter``: auto (a real one), software (an emulated one is welcome), none.

    ``weights``: bytes of the model that is to run, for the tier; None where they are unknown.
    """
    if adapter not in ADAPTERS:
        raise BadArgument(f"adapter is {adapter!r}; it must be one of {', '.join(ADAPTERS)}.", adapter=adapter)
    if adapter == "none":
        return _absent("the GPU was switched off by the adapter setting")
    import js

    gpu = getattr(js.navigator, "gpu", None)
    if not gpu:
        return _absent("this browser has no WebGPU (or the page is not served over https)")
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            handle = await gpu.requestAdapter(powerPreference="high-performance")
            if not handle and adapter == "software":
                handle = await gpu.requestAdapter(forceFallbackAdapter=True)
    except TimeoutError:
        return _absent(f"the browser gave no answer about a GPU within {ANSWER_SECONDS:g} s")
    except Exception as error:
        return _absent(f"the browser failed to give a GPU adapter ({error})")
    if not handle:
        return _absent("the browser found no GPU adapter")
    info = getattr(handle, "info", None)  # which came to browsers later than adapters did
    words = [str(getattr(info, key, "") or "") for key in ("vendor", "architecture", "device", "description")]
    name = " ".join(dict.fromkeys(word for word in words if word)) or "unnamed adapter"
    software = bool(getattr(info, "isFallbackAdapter", False)) or any(word in name.lower() for word in SOFTWARE_NAMES)
    limits = {
        key: int(getattr(handle.limits, key))
        for key in (
            "maxBufferSize", "maxStorageBufferBindingSize", "maxStorageBuffersPerShaderStage",
            "maxComputeWorkgroupStorageSize", "maxComputeInvocationsPerWorkgroup",
        )
    }  # fmt: skip
    tier = tier_of(limits["maxStorageBufferBindingSize"], weights)
    usable, reason = True, f"running on {name}"
    if software and adapter != "software":
        usable, tier, reason = False, "unsupported", f"the only adapter is {name}, a GPU emulated on the CPU"
    features = frozenset(str(feature) for feature in handle.features.values())
    known = getattr(gpu, "wgslLanguageFeatures", None)
    languages = frozenset(str(each) for each in known.values()) if known else frozenset()
    subgroups = (int(getattr(info, "subgroupMinSize", 0) or 0), int(getattr(info, "subgroupMaxSize", 0) or 0))
    return Probe(tier, name, software, usable, reason, features, limits, subgroups, handle, languages)
