"""EfficientNet-Lite0 on its way from the PyTorch file to safetensors: the folding, the names, the numbers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from safetensors.numpy import load

from pyapp.errors import BadModel
from pyapp.setup import models
from pyapp.setup.efficientnet import BN_EPSILON, convert, fold, fold_batch_norm, layers, write_safetensors
from tests.unit.torch_files import state_dict

Array = NDArray[Any]

# Kernel and stride of each stage's first block (EfficientNet, arXiv 1905.11946, table 1).
GEOMETRY = ((3, 1), (3, 2), (5, 2), (3, 2), (5, 1), (5, 2), (3, 1))
BLOCKS = (1, 2, 2, 3, 3, 4, 1)


def conv(x: Array, weight: Array, stride: int = 1) -> Array:
    """Convolution of x [C, H, W] with weight [O, C, kh, kw], or [C, 1, kh, kw] for a depthwise one; SAME padding."""
    k = weight.shape[2]
    pads = [max((-(-n // stride) - 1) * stride + k - n, 0) for n in x.shape[1:]]
    padded: Array = np.pad(x, [(0, 0), *((p // 2, p - p // 2) for p in pads)])
    view = np.lib.stride_tricks.sliding_window_view
    windows: Array = view(padded, (k, k), axis=(1, 2))[:, ::stride, ::stride]  # type: ignore[call-overload]
    if weight.shape[1] == 1:
        return np.einsum("chwyx,cyx->chw", windows, weight[:, 0])
    return np.tensordot(weight, windows, axes=([1, 2, 3], [0, 3, 4]))


def forward(weights: dict[str, Array], pixels: Array) -> Array:
    """Logits [1000] for pixels [224, 224, 3] uint8: the network written down once more, straight from the paper."""

    def layer(x: Array, name: str, stride: int = 1, relu6: bool = True) -> Array:
        y = conv(x, weights[f"{name}.weight"], stride) + weights[f"{name}.bias"][:, None, None]
        return np.clip(y, 0, 6) if relu6 else y

    x = layer(((pixels.astype(np.float32) - 127) / 128).transpose(2, 0, 1), "conv_stem", 2)
    for stage, ((_, first), count) in enumerate(zip(GEOMETRY, BLOCKS, strict=True)):
        for block in range(count):
            name, stride, before = f"blocks.{stage}.{block}", first if block == 0 else 1, x
            if stage == 0:
                x = layer(layer(x, f"{name}.conv_dw", stride), f"{name}.conv_pw", relu6=False)
            else:
                wide = layer(layer(x, f"{name}.conv_pw"), f"{name}.conv_dw", stride)
                x = layer(wide, f"{name}.conv_pwl", relu6=False)
            if x.shape == before.shape:
                x = x + before
    pooled = layer(x, "conv_head").mean(axis=(1, 2))
    logits: Array = weights["classifier.weight"] @ pooled + weights["classifier.bias"]
    return logits


def test_folding_equals_the_two_steps() -> None:
    random = np.random.default_rng(3)
    x, weight = random.normal(size=(4, 9, 9)), random.normal(size=(6, 4, 3, 3)).astype(np.float32)
    gain, bias, mean = (random.normal(size=6).astype(np.float32) for _ in range(3))
    variance = random.uniform(1e-6, 2, size=6).astype(np.float32)  # some near the epsilon, where it matters
    variance[0] = 0
    scale = gain / np.sqrt(variance.astype(np.float64) + BN_EPSILON)
    wanted = (conv(x, weight, 2) - mean[:, None, None]) * scale[:, None, None] + bias[:, None, None]
    folded, offset = fold_batch_norm(weight, gain, bias, mean, variance, BN_EPSILON)
    assert folded.dtype == offset.dtype == np.float32
    np.testing.assert_allclose(conv(x, folded, 2) + offset[:, None, None], wanted, atol=2e-5, rtol=2e-6)


def test_folding_keeps_depthwise_channels_apart() -> None:
    weight = np.ones((2, 1, 3, 3), np.float32)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    folded, offset = fold_batch_norm(weight, np.array([2, 3], np.float32), one, zero, one, 0.0)
    np.testing.assert_array_equal(folded[:, 0, 0, 0], [2, 3])
    np.testing.assert_array_equal(offset, one)


def test_every_layer_is_named_once() -> None:
    here, convs, norms = zip(*layers(), strict=True)
    assert len(here) == len(set(here)) == len(set(convs)) == len(set(norms)) == 49
    assert here[:4] == ("conv_stem", "blocks.0.0.conv_dw", "blocks.0.0.conv_pw", "blocks.1.0.conv_pw")
    assert convs[-2] == "_blocks.15._project_conv"
    assert here[-2] == "blocks.6.0.conv_pwl"


@pytest.fixture(scope="module")
def source() -> bytes:
    model = next(model for model in models.MODELS if model.name == "efficientnet-lite0")
    return models.obtain_source(model).read_bytes()


@pytest.fixture(scope="module")
def converted(source: bytes) -> bytes:
    return convert(source)


def test_the_converted_model_gives_the_golden_logits(converted: bytes, data: Path) -> None:
    weights = load(converted)
    pictures = json.loads((data / "effnet_lite0.json").read_text(encoding="utf-8"))["pictures"]
    for picture in pictures:
        with Image.open(data / "pics" / picture["model_input"]) as image:
            logits = forward(weights, np.asarray(image.convert("RGB")))
        # float32 sums in another order than the oracle's
        for row in picture["top5"]:
            assert logits[row["class"]] == pytest.approx(row["logit"], abs=1e-3), picture["picture"]
        assert int(logits.argmax()) == picture["top5"][0]["class"]
        if "logits" in picture:
            np.testing.assert_allclose(logits, picture["logits"], atol=1e-3)


def test_conversion_gives_the_same_bytes_every_time(source: bytes, converted: bytes) -> None:
    assert convert(source) == converted
    # Addresses of chunks hang on this: visitors download the model again when it changes.
    assert hashlib.sha256(converted).hexdigest() == "3bdfcbd0798c8b030901755bf8b3c36008ee40693023c7de54b65e696aebaf8c"


def test_the_file_is_read_back_by_the_format_s_own_library() -> None:
    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([1.5], np.float32)}
    data = write_safetensors(tensors, {"x": "ü", "y": "2"})
    read = load(data)
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read[name], tensor)
    assert int.from_bytes(data[:8], "little") % 8 == 0


def test_shapes_and_types(converted: bytes) -> None:
    weights = load(converted)
    assert len(weights) == 2 * 49 + 2
    assert {array.dtype.name for array in weights.values()} == {"float32"}
    assert weights["conv_stem.weight"].shape == (32, 3, 3, 3)
    assert weights["blocks.5.3.conv_dw.weight"].shape == (1152, 1, 5, 5)
    assert weights["classifier.weight"].shape == (1000, 1280)


def test_a_missing_or_unknown_tensor_is_refused() -> None:
    with pytest.raises(BadModel, match=r"lacks the tensor _conv_stem\.weight"):
        convert(state_dict({"other": np.zeros(3, np.float32)}))
    full: dict[str, Array] = {}
    for _, convolution, norm in layers():
        full[f"{convolution}.weight"] = np.ones((1, 1, 1, 1), np.float32)
        full |= {f"{norm}.{part}": np.ones(1, np.float32) for part in ("weight", "bias", "running_mean", "running_var")}
        full[f"{norm}.num_batches_tracked"] = np.ones(1, np.int64)
    full |= {"_fc.weight": np.ones((1, 1), np.float32), "_fc.bias": np.ones(1, np.float32)}
    assert len(fold(full)) == 2 * 49 + 2
    with pytest.raises(BadModel, match="no known use: extra"):
        fold({**full, "extra": np.zeros(1, np.float32)})
