"""The vision kernels in a real browser, through the same FFI path as the product, against NumPy."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Browser

from pyapp.compiler.lowering import lower
from pyapp.gpu.limits import DeviceLimits
from tests.browser.pyodide_page import PyodidePage
from tests.kernels.vision_cases import TOLERANCE, cases

FILES = ["kernels/gpu_runner.py", "kernels/vision_cases.py", "kernels/vision_on_gpu.py"]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def python(browser: Browser, site: str) -> AsyncIterator[PyodidePage]:
    async with PyodidePage.opened(browser, site) as page:
        yield page


async def test_vision_kernels_equal_numpy(python: PyodidePage) -> None:
    found = await python.run("kernels.vision_on_gpu", "compare", FILES)
    assert set(found["errors"]) == {case.name for case in cases()}
    assert {name: error for name, error in found["errors"].items() if not error <= TOLERANCE} == {}
    assert found["uncaught"] == []
    plans = [lower(case.graph, case.limits(DeviceLimits(software=True))) for case in cases()]
    shaders = {dispatch.shader for plan in plans for dispatch in plan.dispatches}
    assert found["pipelines"] == len(shaders) > 15
