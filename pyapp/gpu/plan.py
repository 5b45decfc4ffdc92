"""What lowering yields: dispatches with symbolic bindings, ready to be bound to buffers and replayed.

Nothing here knows WebGPU: a ``Dispatch`` names the tensors that it binds, ``gpu/replay.py`` turns names into buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FIGURES = "figures"
"""The tensor of a plan's ``constants``: a uniform."""


@dataclass(frozen=True)
class Binding:
    """A range of a tensor bound to ``@binding(slot)``.

    ``section`` tells which part of a packed weight (``quants`` or ``scales``); ``data`` is a plain tensor's only one.
    ``offset`` and ``nbytes`` are bytes within that section; ``nbytes`` None means up to its end.
    """

    slot: int
    tensor: str
    mode: Literal["read", "read_write"]
    section: Literal["data", "quants", "scales"] = "data"
    offset: int = 0
    nbytes: int | None = None

    @property
    def buffer_type(self) -> Literal["uniform", "read-only-storage", "storage"]:
        """The bind group layout's entry: the step state is a uniform wherever it is only read."""
        if self.mode == "read_write":
            return "storage"
        return "uniform" if self.tensor in ("state", FIGURES) else "read-only-storage"


@dataclass(frozen=True)
class Shader:
    """A WGSL file and the values it is specialised with: equal shaders share one pipeline."""

    file: str
    params: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(file: str, **params: Any) -> Shader:
        return Shader(file, tuple(sorted(params.items())))

    @property
    def label(self) -> str:
        """Short name for tables and pipeline labels: the file and what distinguishes the variant."""
        words = [str(v) if not isinstance(v, bool) else k for k, v in self.params if isinstance(v, str | bool) and v]
        return " ".join([self.file, *words])


@dataclass(frozen=True)
class Dispatch:
    """One dispatch. ``workgroups`` are counts for a full plan; where ``per_tile`` is set, y is a multiple of the
    number of token tiles of the widest chunk, and a shorter chunk replays with fewer.

    ``figures`` are the sizes that this dispatch differs in from others of its shader: int32 that ``lower`` puts into
    the plan's constants, where the binding to ``FIGURES`` finds them.
    """

    operation: str
    shader: Shader
    bindings: tuple[Binding, ...]
    workgroups: tuple[int, int, int]
    bytes: int
    flops: int
    per_tile: bool = False
    figures: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryPlan:
    """Where each activation lies in the workspace: byte offsets by tensor, 256-aligned.

    ``peak``: bytes needed with reuse; ``sum``: without.
    """

    offsets: Mapping[str, int]
    sizes: Mapping[str, int]
    peak: int
    sum: int


@dataclass(frozen=True)
class Plan:
    """A graph lowered for one device: the dispatches in order and the places of its activations."""

    name: str
    dispatches: tuple[Dispatch, ...]
    memory: MemoryPlan
    tile: int = 1
    """Tokens a tile: a chunk of n tokens replays ceil(n / tile) tiles."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """Named indices into ``dispatches``: a replay may start or stop there."""
    constants: bytes = b""
    """What ``FIGURES`` holds; written once."""

    @property
    def full_tiles(self) -> int:
        """Token tiles of the widest chunk."""
        tokens = max((d.workgroups[1] for d in self.dispatches if d.per_tile), default=1)
        return max(1, tokens // max(1, self.tile))

    def rows(self) -> list[dict[str, Any]]:
        """The printable table of what runs: operation, kernel, dispatches, bytes, flops."""
        return [
            {"operation": d.operation, "kernel": d.shader.label, "dispatches": 1, "bytes": d.bytes, "flops": d.flops}
            for d in self.dispatches
        ]
