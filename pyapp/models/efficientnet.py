"""EfficientNet-Lite: its graph at any width and depth, and its weights as the kernels want them.

The network of arXiv 1905.11946 in the variant for mobile devices (github.com/tensorflow/tpu, efficientnet/lite): no
squeeze-and-excite, ReLU6 for Swish, a stem and a head of fixed width. Lite0 is the network at width and depth 1.
Padding is TensorFlow's SAME, which for stride 2 puts the odd row and column at the bottom and the right.

Everything is NHWC. A convolution's weight has the layout of the graph's tensor, not of the file (OIHW):

    stem       [kh·kw·Cin, Cout]   row (ky·kw + kx)·Cin + c
    depthwise  [kh·kw, C]          row ky·kw + kx
    pointwise  [Cin, Cout]         neighbouring outputs, which neighbouring invocations compute, are neighbours
    classifier [Cin, Cout]         likewise: a pointwise convolution of the one pooled pixel
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compiler.graph import Graph, GraphBuilder, Op
from ..errors import BadModel
from ..weights.packing import PackedTensor, PackLayout, Progress, Sink, WeightFile, plan_layout
from ..weights.source import Source

SIDE = 224
CLASSES = 1000
NORMALISE = (127.0, 128.0)
"""A byte b enters the network as (b - 127) / 128: ``MEAN_RGB`` and ``STDDEV_RGB`` of the lite models."""
STEM, HEAD = 32, 1280
# kernel, stride of the first block, expansion, output channels, blocks: arXiv 1905.11946, table 1.
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
CHANNEL_STEP = 8
BLOCK_BYTES = 4 << 20
"""A packed block is closed before it would pass this many bytes: one upload."""


@dataclass(frozen=True)
class Scale:
    """How much wider and deeper than Lite0 a network is: compound scaling (arXiv 1905.11946, section 3.3) in its form
    for the lite models, where stem, head, and the depth of the first and the last stage stay as they are."""

    width: float = 1.0
    depth: float = 1.0

    def channels(self, base: int) -> int:
        """The next multiple of 8, but never less than nine tenths of what was asked."""
        wanted = base * self.width
        rounded = max(CHANNEL_STEP, int(wanted + CHANNEL_STEP / 2) // CHANNEL_STEP * CHANNEL_STEP)
        return rounded if rounded >= 0.9 * wanted else rounded + CHANNEL_STEP

    def stages(self) -> Iterator[tuple[int, int, int, int, int]]:
        """``STAGES`` scaled."""
        for number, (kernel, stride, expansion, cout, blocks) in enumerate(STAGES):
            fixed = number in (0, len(STAGES) - 1)
            yield kernel, stride, expansion, self.channels(cout), blocks if fixed else ceil(blocks * self.depth)


LITE0 = Scale()


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int, int]:
    """TensorFlow's SAME for one axis: (output size, zeros before, zeros after); the odd zero goes after."""
    out = -(-size // stride)
    total = max((out - 1) * stride + kernel - size, 0)
    return out, total // 2, total - total // 2


class _Net:
    """Adds layers to a builder; each method takes and returns the name of an activation [h, w, C]."""

    def __init__(self) -> None:
        self.builder = GraphBuilder("efficientnet-lite0")

    def conv(
        self,
        x: str,
        name: str,
        cout: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        output: str = "",
        **attrs: Any,
    ) -> str:
        *size, cin = self.builder.tensors[x].shape
        out, before, after = zip(*(same_padding(side, kernel, stride) for side in size), strict=True)
        pad = (*before, *after) if len(size) == 2 else (0, 0, 0, 0)
        rows = kernel * kernel * (1 if groups == cin else cin)
        return self.builder.op(
            "conv",
            output or name,
            (*out, cout),
            {"kernel": kernel, "stride": stride, "pad": pad, "groups": groups, **attrs},
            name=name,
            x=x,
            weight=self.builder.tensor(f"{name}.weight", (rows, cout), "weight"),
            bias=self.builder.tensor(f"{name}.bias", (cout,), "weight"),
        )

    def relu6(self, x: str) -> str:
        return self.builder.op("activation", f"{x}.relu6", self.builder.tensors[x].shape, {"activation": "relu6"}, x=x)

    def block(self, x: str, name: str, kernel: int, stride: int, expansion: int, cout: int) -> str:
        """An inverted residual (MobileNetV2, arXiv 1801.04381); with expansion 1 the first product is left out."""
        cin = self.builder.tensors[x].shape[2]
        wide = x if expansion == 1 else self.relu6(self.conv(x, f"{name}.conv_pw", cin * expansion))
        channels = cin * expansion
        wide = self.relu6(self.conv(wide, f"{name}.conv_dw", channels, kernel, stride, groups=channels))
        y = self.conv(wide, f"{name}.conv_pw" if expansion == 1 else f"{name}.conv_pwl", cout)
        if stride == 1 and cin == cout:
            y = self.builder.op("sum", f"{name}.sum", self.builder.tensors[y].shape, a=y, b=x)
        return y


def build_graph(scale: Scale = LITE0) -> Graph:
    """Input ``pixels`` [224, 224, 3] u8 (RGB), output ``logits`` [1, 1000]; primitive operations, nothing fused."""
    net = _Net()
    pixels = net.builder.tensor("pixels", (SIDE, SIDE, 3), "input", dtype="u8")
    x = net.relu6(net.conv(pixels, "conv_stem", STEM, 3, 2, normalise=NORMALISE))
    for stage, (kernel, stride, expansion, cout, blocks) in enumerate(scale.stages()):
        for block in range(blocks):
            x = net.block(x, f"blocks.{stage}.{block}", kernel, stride if block == 0 else 1, expansion, cout)
    x = net.relu6(net.conv(x, "conv_head", HEAD))
    x = net.builder.op("global_pool", "pool", (1, HEAD), x=x)
    net.builder.tensor("logits", (1, CLASSES), "output")
    net.conv(x, "classifier", CLASSES, output="logits")
    return net.builder.build()


def from_file_layout(data: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float32]:
    """A file's tensor (OIHW, or [out, in] of the classifier, or a bias [C]) as the graph's tensor of ``shape``.

    A view where it can be one. Outputs come last in the graph's layout and first in the file's, so all three weight
    layouts are one rule: the taps, then the inputs, then the outputs. Raises BadModel when the sizes disagree.
    """
    taps_last = data.ndim == 4
    turned = data.transpose(2, 3, 1, 0).reshape(-1, data.shape[0]) if taps_last else data.T
    if turned.shape != tuple(shape):
        raise BadModel(f"A tensor of shape {list(data.shape)} cannot become the {list(shape)} that the network needs.")
    return turned


def execution_order(graph: Graph) -> list[str]:
    """Names of the weights in the order in which operations read them."""
    return [name for op in graph.ops for name in weights_of(graph, op)]


def weights_of(graph: Graph, op: Op) -> list[str]:
    return [name for name in op.inputs.values() if graph.tensors[name].kind == "weight"]


def pack_recipes(graph: Graph, block_bytes: int = BLOCK_BYTES) -> dict[str, list[PackedTensor]]:
    """The packed tensors by block, in execution order; a block takes whole operations up to ``block_bytes``
    (an operation larger than that gets a block of its own). Layout as the graph's tensors: plain float32 rows.
    """
    blocks: dict[str, list[PackedTensor]] = {}
    room = 0
    for op in graph.ops:
        names = weights_of(graph, op)
        size = sum(graph.tensors[name].nbytes for name in names)
        if not names:
            continue
        if size > room or not blocks:
            blocks[f"block{len(blocks)}"] = []
            room = block_bytes
        room -= size
        for name in names:
            shape = graph.tensors[name].shape
            blocks[next(reversed(blocks))].append(
                PackedTensor(name, (), "f32", *(shape if len(shape) == 2 else (1, *shape)))
            )
    return blocks


def pack_layout(graph: Graph, block_bytes: int = BLOCK_BYTES) -> PackLayout:
    """Where each weight lies in the packed blob."""
    return plan_layout(pack_recipes(graph, block_bytes))


async def load_tensor(graph: Graph, file: WeightFile, source: Source, name: str) -> NDArray[np.float32]:
    """One weight from the file, in the graph's layout (perhaps a view, so not always contiguous). Raises BadModel."""
    info = file.tensors.get(name)
    if info is None:
        raise BadModel(f"The vision model's file lacks the tensor {name}.", tensor=name)
    if info.type != "F32":
        raise BadModel(f"The tensor {name} is {info.type}; the vision model needs F32.", tensor=name, type=info.type)
    data = np.frombuffer(await source.read(info.offset, info.nbytes), "<f4").reshape(info.shape)
    return from_file_layout(data, graph.tensors[name].shape)


async def pack_vision(
    graph: Graph, file: WeightFile, source: Source, layout: PackLayout, sink: Sink, progress: Progress | None = None
) -> None:
    """Writes every weight of ``graph`` at its place in the packed blob, one tensor (of Lite0 at most 5 MB) at a time.

    Raises BadModel when a tensor is missing, is not F32 or has another shape.
    """
    done = 0
    for block in layout.blocks:
        for name, entry in block.entries.items():
            data = np.ascontiguousarray(await load_tensor(graph, file, source, name))
            await sink.write(entry.quants_offset, data.reshape(-1).view(np.uint8))
            done += data.nbytes
            if progress:
                progress("pack", done, layout.total)
