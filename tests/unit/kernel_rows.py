"""Rows of the bench of kernels, as a page would post them for a GPU that does not exist."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
ABOUT: Row = {"adapter": "nvidia hopper", "software": False}


def ceiling(name: str, **figures: Any) -> Row:
    return {"bench": "kernels", "row": "ceiling", "ceiling": name, **figures}


CEILINGS = [
    ceiling("upload", bytes=1 << 30, GBps=1.4, GBps_best=1.6),
    ceiling("read", bytes=16 << 20, ranges=64, us=6.9, us_min=6.8, clock="gpu", GBps=4400.0),
    ceiling("read", bytes=8 << 20, us=2.1, us_min=2.0, GBps=4000.0),
    ceiling("read", bytes=1 << 30, us=400.0, us_min=398.0, GBps=2684.0),
    ceiling("dispatch", dispatches=1000, pipelines=2, us=2.7, us_min=2.6, clock="gpu", wall_us=4.8),
    ceiling("arithmetic", flops=8 << 30, us=170.0, us_min=168.0, GFLOPs=50_000.0),
    ceiling("round trip", via="mapAsync", us=2400.0, us_min=2100.0),
]


def kernel(operation: str, count: int, us: float, nbytes: float, flops: float, **more: Any) -> Row:
    """A row of a kernel; decode at 128 of a model ``small`` where ``more`` does not say otherwise."""
    least = {"memory": nbytes / 2684e3, "arithmetic": flops / 50e6, "dispatch": 2.7}
    bound = max(least, key=lambda name: least[name])
    return {
        "bench": "kernels", "row": "kernel", "model": "small", "phase": "decode", "context": 128,
        "operation": operation, "kernel": "matvec q4 rms_norm", "workgroups": [128, 1, 1], "workgroup": 128,
        "count": count, "us": us, "us_min": us * 0.97, "us_repeated": us * 0.8, "us_in_place": us * 1.05,
        "bytes": nbytes, "flops": flops, "GBps": nbytes / us / 1e3, "GFLOPs": flops / us / 1e3,
        "clock": "gpu", "share": least[bound] / us, "bound": bound, "of_read": 0.31, **more,
    }  # fmt: skip


DECODE = [
    kernel("embed_out", 1, 3.0, 1e4, 576.0),
    kernel("layers.0.qkv_out", 30, 4.2, 0.31e6, 1.1e6),
    kernel("layers.0.parts", 30, 5.0, 0.2e6, 0.3e6, kernel="attention_split"),
    kernel("layers.0.attn_out", 30, 4.0, 0.19e6, 0.66e6),
    kernel("layers.0.gate_up_out", 30, 6.4, 0.99e6, 3.5e6),
    kernel("layers.0.down_out", 30, 5.1, 0.5e6, 1.77e6),
    kernel("logits", 1, 22.0, 15.9e6, 56.6e6),
    kernel("sample_greedy", 1, 9.0, 0.2e6, 49152.0, kernel="sample_greedy"),
    kernel("sample_random", 0, 60.0, 0.2e6, 49152.0, kernel="sample", us_in_place=None),
    kernel("layers.0.parts", 30, 7.0, 6.3e6, 9.4e6, kernel="attention_split", context=4096),
    kernel("layers.0.gate_up_out", 30, 6.5, 0.99e6, 3.5e6, context=4096),
]
PREFILL = [
    kernel("layers.0.qkv_out", 30, 17.0, 1.5e6, 283e6, phase="prefill", context=0),
    kernel("layers.0.parts", 30, 60.0, 3e6, 150e6, phase="prefill", context=0, kernel="attention"),
    kernel("layers.0.gate_up_out", 30, 50.0, 4.7e6, 906e6, phase="prefill", context=0),
    kernel("layers.0.down_out", 30, 45.0, 3.5e6, 453e6, phase="prefill", context=0),
]
VISION = [
    kernel(f"blocks.{i}.expand_out", 1, 20.0 + 7 * i, 1e6 + 3e5 * i, 8e6 + i * 9e6, phase="vision", context=None,
           model="pictures")
    for i in range(24)
]  # fmt: skip
STEP: Row = {
    "bench": "kernels", "row": "step", "model": "small", "phase": "decode", "context": 128, "us": 800.0,
    "us_min": 790.0, "kernels_us": 790.0, "dispatches": 153, "bytes": 96.6e6, "GBps": 120.7, "stopped": False,
}  # fmt: skip


def shape(us: float, lanes: int, present: bool = False) -> Row:
    return {
        "bench": "kernels", "row": "shape", "model": "small", "product": "q4 3072x576 rms_norm silu_mul",
        "lanes": lanes, "rows": 4, "workgroup": 128, "us": us, "us_min": us, "GBps": 150.0, "present": present,
    }  # fmt: skip


SHAPES = [shape(9.0, 16, present=True), *(shape(us, 4) for us in (8.0, 7.0, 6.0, 5.0, 4.0, 3.0))]
ATTENTION = [
    {
        "bench": "kernels", "row": "attention", "model": "small", "splits": n, "least": 64, "chunk": 64,
        "context": 4096, "us": 7.0, "us_min": 6.8, "step_us": 900.0 + n, "present": n == 16,
    }
    for n in (16, 32)
]  # fmt: skip
TILES = [
    {
        "bench": "kernels", "row": "tile", "model": "small", "operation": "layers.0.gate_up_out", "tile_n": 64,
        "tile_m": m, "rows": 4, "tokens": 4, "workgroup": 4 * m, "us": 50.0, "us_min": 49.0, "GFLOPs": 18000.0,
        "present": m == 32,
    }
    for m in (32, 64)
]  # fmt: skip
TUNED = {
    "bench": "kernels", "row": "tuned", "model": "small", "context": 128, "us": 750.0, "us_min": 740.0,
    "present_us": 800.0, "difference": 1e-5, "largest": 20.0,
}  # fmt: skip
FUSION = {
    "bench": "kernels", "row": "fusion", "model": "small", "without": "silu_mul", "context": 128, "us": 950.0,
    "us_min": 940.0, "fused_us": 800.0, "cost_us": 150.0, "dispatches": 183, "fused_dispatches": 153, "bytes": 97e6,
    "fused_bytes": 96.6e6, "stopped": False,
}  # fmt: skip
ALL = [ABOUT, *CEILINGS, *DECODE, *PREFILL, *VISION, STEP, FUSION, *SHAPES, TUNED, *ATTENTION, *TILES]
