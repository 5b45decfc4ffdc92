"""The vision model where there is no GPU: the same graph, run in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiler.graph import Graph
from ..compiler.passes import fuse
from ..compiler.passes_vision import VISION_PASSES
from ..compiler.reference import run
from ..errors import BadImage
from ..models.efficientnet import SIDE, build_graph, execution_order, load_tensor
from ..weights.safetensors import read_safetensors


class CpuVision:
    """EfficientNet-Lite0 on the CPU. Holds the weights (18.5 MB); a picture takes about 0.3 s in Pyodide."""

    def __init__(self, graph: Graph, weights: dict[str, NDArray[np.float32]]) -> None:
        self._graph = graph
        self._weights = weights

    @classmethod
    async def create(cls, stored: Any) -> CpuVision:
        """Reads the weights of a ``StoredModel`` (a safetensors file). Raises BadModel, BadWeights."""
        graph = fuse(build_graph(), VISION_PASSES)
        file = await read_safetensors(stored.source)
        weights = {name: await load_tensor(graph, file, stored.source, name) for name in execution_order(graph)}
        return cls(graph, weights)

    def classify(self, rgb: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Logits float32 [1000] of a picture uint8 [224, 224, 3] RGB. Raises BadImage for another shape or type."""
        if rgb.shape != (SIDE, SIDE, 3) or rgb.dtype != np.uint8:
            raise BadImage(
                f"The vision model takes {SIDE} x {SIDE} x 3 bytes (RGB), not {rgb.dtype} {list(rgb.shape)}.",
                shape=list(rgb.shape),
            )
        logits: Any = run(self._graph, {"pixels": rgb}, self._weights.__getitem__, keep=("logits",))["logits"]
        return logits[0]
