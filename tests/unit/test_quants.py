"""Every quantised type against values computed by gguf-py (``tests/data/dequant.json``)."""

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from pyapp.errors import BadModel
from pyapp.weights.quants import QUANT_TYPES, dequantise

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "dequant.json").read_text())["types"]


def test_every_golden_type_is_supported() -> None:
    assert {golden["type"] for golden in GOLDEN} == set(QUANT_TYPES)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["type"])
def test_values_are_those_of_ggml_bit_for_bit(golden: dict) -> None:
    blocks = [np.frombuffer(base64.b64decode(block["bytes_b64"]), np.uint8) for block in golden["blocks"]]
    wanted = np.concatenate([np.frombuffer(base64.b64decode(b["values_f32le_b64"]), "<f4") for b in golden["blocks"]])
    values = dequantise(golden["type"], np.concatenate(blocks), golden["block_size"] * len(blocks))
    assert values.dtype == np.float32
    # Compared as numbers, so that -0 equals 0; no tolerance.
    np.testing.assert_array_equal(values, wanted)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["type"])
def test_block_sizes(golden: dict) -> None:
    layout = QUANT_TYPES[golden["type"]]
    nbytes = len(base64.b64decode(golden["blocks"][0]["bytes_b64"]))
    assert nbytes * layout.values == layout.nbytes * golden["block_size"]


def test_unknown_type_and_wrong_length_are_refused() -> None:
    with pytest.raises(BadModel, match="IQ2_XXS"):
        dequantise("IQ2_XXS", np.zeros(66, np.uint8), 256)
    with pytest.raises(BadModel, match="19 bytes of Q4_1 do not hold 32 values"):
        dequantise("Q4_1", np.zeros(19, np.uint8), 32)
    with pytest.raises(BadModel):
        dequantise("Q4_1", np.zeros(20, np.uint8), 31)


def test_empty_input_gives_no_values() -> None:
    assert dequantise("Q4_K", np.zeros(0, np.uint8), 0).size == 0
