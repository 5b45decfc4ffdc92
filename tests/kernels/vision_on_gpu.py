"""Runs in Pyodide, in a worker of the page: the vision cases on the GPU against NumPy."""

from __future__ import annotations

from typing import Any

from pyapp.compiler.reference import run

from .gpu_runner import GpuRunner
from .vision_cases import cases, normalised_squared_error


async def compare() -> dict[str, Any]:
    """Every case's normalised squared error by name, and the errors that WebGPU reported on the side."""
    runner = await GpuRunner.open()
    errors = {}
    for case in cases():
        limits = case.limits(runner.device.limits)
        y = await runner.run(case.graph, limits, case.inputs, case.weights, case.output)
        wanted = run(case.graph, case.inputs, case.weights.__getitem__)[case.output]
        errors[case.name] = normalised_squared_error(y, wanted)
    return {"errors": errors, "pipelines": runner.kernels.count, "uncaught": runner.close()}
