"""The blocks of a layout: together they are the blob, and each knows its rows."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from pyapp.models.decoder import expected_shapes
from pyapp.models.decoder_weights import recipes_by_block
from pyapp.weights.blocks import blocks_of, row_step
from pyapp.weights.packing import FORMATS, PackedTensor, PackLayout, SourceRows, plan_layout, row_sizes

from .decoder_configs import SMOLLM2

RECIPES = st.builds(
    lambda fmt, n, k: (fmt, n, 32 * k), st.sampled_from(FORMATS), st.integers(1, 700), st.integers(1, 9)
)


def layout_of(groups: list[list[tuple[str, int, int]]]) -> PackLayout:
    return plan_layout(
        {
            f"g{i}": [PackedTensor(f"t{i}.{j}", (SourceRows("x"),), fmt, n, k) for j, (fmt, n, k) in enumerate(group)]
            for i, group in enumerate(groups)
        }
    )


@given(
    st.lists(st.lists(RECIPES, min_size=1, max_size=5), min_size=1, max_size=4), st.sampled_from([1, 4, 64, 1 << 20])
)
def test_blocks_are_the_blob_and_rows_lie_where_they_should(groups: list[list[tuple[str, int, int]]], kib: int) -> None:
    layout, most = layout_of(groups), kib << 10
    blocks = blocks_of(layout, most)
    extents = sorted(extent for block in blocks for extent in block.extents)
    at = 0
    for offset, nbytes in extents:
        assert offset == at
        assert offset % 256 == nbytes % 256 == 0
        at += nbytes
    assert at == layout.total
    assert len({block.name for block in blocks}) == len(blocks)
    seen: dict[str, list[int]] = {}
    recipes = {recipe.name: recipe for group in layout.blocks for recipe in group.recipes}
    for block in blocks:
        for tensor, (first, count) in block.rows.items():
            recipe, entry = recipes[tensor], layout.entries[tensor]
            seen.setdefault(tensor, []).extend(range(first, first + count))
            for begin, row in zip(
                (entry.quants_offset, entry.scales_offset), row_sizes(recipe.fmt, recipe.k), strict=True
            ):
                low, high = begin + first * row, begin + (first + count) * row
                assert row == 0 or any(o <= low and high <= o + n for o, n in block.extents)
            if len(block.rows) == 1 and count < recipe.n:
                assert first % row_step(recipe.fmt, recipe.k) == 0
                step_bytes = sum(row_sizes(recipe.fmt, recipe.k)) * row_step(recipe.fmt, recipe.k)
                assert block.nbytes <= max(most, step_bytes) + 512  # a last block has the padding too
    assert seen == {name: list(range(recipe.n)) for name, recipe in recipes.items()}
    assert [block.name for block in blocks_of(layout, 1, by_rows=False)] == [group.name for group in layout.blocks]


def test_smollm2_moves_in_layers_and_pieces_of_its_embedding() -> None:
    tensors = {
        name: SimpleNamespace(shape=shape, type="F32" if len(shape) == 1 else "Q4_1")
        for name, shape in expected_shapes(SMOLLM2).items()
    }
    blocks = blocks_of(plan_layout(recipes_by_block(SMOLLM2, tensors)))
    names = [block.name for block in blocks]
    assert names == ["vectors", *[f"embed.{i}" for i in range(5)], *[f"layers.{i}" for i in range(30)]]
    assert max(block.nbytes for block in blocks) <= 4 << 20
