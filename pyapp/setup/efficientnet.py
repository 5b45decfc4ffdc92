"""EfficientNet-Lite0 from its PyTorch file: BatchNorm folded into the convolutions, written as safetensors.

The names are those of ``timm``'s ``tf_efficientnet_lite0``: they tell stage and block, where the source numbers all
blocks in a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from pyapp.errors import BadModel

from .torch_legacy import read_state_dict

BN_EPSILON = 1e-3  # of TensorFlow's EfficientNet, which these weights were trained with
STAGES = (1, 2, 2, 3, 3, 4, 1)  # blocks in each stage (EfficientNet, arXiv 1905.11946, table 1)

Tensors = Mapping[str, NDArray[np.generic]]
Float32 = NDArray[np.float32]


def fold_batch_norm(
    weight: NDArray[np.generic],
    gain: NDArray[np.generic],
    bias: NDArray[np.generic],
    mean: NDArray[np.generic],
    variance: NDArray[np.generic],
    epsilon: float,
) -> tuple[Float32, Float32]:
    """A convolution without bias and the BatchNorm after it as one convolution: (weight [O, I, H, W], bias [O]).

    gain·(W*x - mean)/sqrt(variance + epsilon) + bias = (s·W)*x + (bias - s·mean) with s = gain/sqrt(variance + epsilon)
    (BatchNorm at inference, arXiv 1502.03167, algorithm 2). Computed in float64, returned as float32.
    """
    scale = gain.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    folded = weight.astype(np.float64) * scale.reshape(-1, *[1] * (weight.ndim - 1))
    return folded.astype(np.float32), (bias.astype(np.float64) - mean.astype(np.float64) * scale).astype(np.float32)


def layers() -> Iterator[tuple[str, str, str]]:
    """Each convolution as (its name here, the source's name, the source's name of the BatchNorm after it)."""
    yield "conv_stem", "_conv_stem", "_bn0"
    number = 0
    for stage, repeats in enumerate(STAGES):
        for block in range(repeats):
            here, source = f"blocks.{stage}.{block}", f"_blocks.{number}"
            if stage == 0:  # expansion 1: depthwise, then pointwise
                yield f"{here}.conv_dw", f"{source}._depthwise_conv", f"{source}._bn1"
                yield f"{here}.conv_pw", f"{source}._project_conv", f"{source}._bn2"
            else:
                yield f"{here}.conv_pw", f"{source}._expand_conv", f"{source}._bn0"
                yield f"{here}.conv_dw", f"{source}._depthwise_conv", f"{source}._bn1"
                yield f"{here}.conv_pwl", f"{source}._project_conv", f"{source}._bn2"
            number += 1
    yield "conv_head", "_conv_head", "_bn1"


def fold(source: Tensors) -> dict[str, Float32]:
    """The folded model: ``<layer>.weight`` (OIHW; classifier [1000, 1280]) and ``<layer>.bias``, float32.

    Raises BadModel when ``source`` lacks a tensor or has one more than EfficientNet-Lite0.
    """
    unused = {name for name in source if not name.endswith(".num_batches_tracked")}

    def take(name: str) -> NDArray[np.generic]:
        if name not in source:
            raise BadModel(f"The EfficientNet-Lite0 file lacks the tensor {name}.")
        unused.discard(name)
        return source[name]

    folded: dict[str, Float32] = {}
    for here, conv, norm in layers():
        folded[f"{here}.weight"], folded[f"{here}.bias"] = fold_batch_norm(
            take(f"{conv}.weight"),
            take(f"{norm}.weight"),
            take(f"{norm}.bias"),
            take(f"{norm}.running_mean"),
            take(f"{norm}.running_var"),
            BN_EPSILON,
        )
    folded["classifier.weight"] = take("_fc.weight").astype(np.float32)
    folded["classifier.bias"] = take("_fc.bias").astype(np.float32)
    if unused:
        raise BadModel(f"The EfficientNet-Lite0 file holds tensors of no known use: {', '.join(sorted(unused))}.")
    return folded


def write_safetensors(tensors: Mapping[str, Float32], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file of float32 tensors, in the given order (github.com/huggingface/safetensors, "Format").

    Written here since the library writes metadata in an order that changes from run to run, and with it every address
    and hash of the model's chunks.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    position = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8
    return b"".join([len(text).to_bytes(8, "little"), text, *(t.astype("<f4").tobytes() for t in tensors.values())])


def convert(data: bytes) -> bytes:
    """The PyTorch file's bytes to those of a safetensors file; the same bytes every time. Raises BadModel."""
    return write_safetensors(fold(read_state_dict(data)), {"format": "tandem", "model": "efficientnet-lite0"})
