"""What is measured: a plan that can be run again and again from the same start. And what one run of it is made of."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ..engine.language import LanguageRunner
from ..engine.steps import Spans
from ..engine.timing import dispatches_of
from ..engine.vision import VisionRunner
from ..errors import BadArgument
from ..gpu.plan import Dispatch, Plan
from ..gpu.replay import Replay
from ..text.sampling import SamplingParams

DRAWING = SamplingParams(temperature=0.7, top_k=40, top_p=0.9)
"""So that the sampler that draws has its work, where it is measured."""


def nothing() -> None:
    """What a picture needs before it."""


@dataclass(frozen=True)
class Subject:
    """``spans`` of ``plan`` are one run of it; ``before`` puts it at its start. ``context``: positions that are cached
    then (None for a picture). ``attended``: the share of the plan's context that attention walks, on average over the
    tokens. ``most``: how many runs in a row there is room for."""

    phase: str
    plan: Plan
    replay: Replay
    spans: Spans
    before: Callable[[], object] = nothing
    tiles: int = 1
    context: int | None = None
    attended: float = 1.0
    most: int = 1 << 20
    rows: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", frozenset(row for begin, end in self.spans for row in range(begin, end)))

    @property
    def dispatches(self) -> int:
        return dispatches_of(self.spans)

    def amounts(self, dispatch: Dispatch) -> tuple[float, float]:
        """(bytes, operations) of a dispatch here: the plan has those of attention at its full context."""
        file = dispatch.shader.file
        share = self.attended if file.startswith("attention") and file != "attention_merge" else 1.0
        return dispatch.bytes * share, dispatch.flops * share

    @property
    def bytes(self) -> float:
        """Of one run."""
        return sum(self.amounts(self.plan.dispatches[row])[0] for row in self.rows)


def spans_of(rows: Iterable[int]) -> Spans:
    """[from, to) of runs of neighbours."""
    out: list[tuple[int, int]] = []
    for row in sorted(rows):
        if out and out[-1][1] == row:
            out[-1] = (out[-1][0], row + 1)
        else:
            out.append((row, row + 1))
    return tuple(out)


def step_at(runner: LanguageRunner, position: int, plan: Plan | None = None, replay: Replay | None = None) -> Subject:
    """A greedy decode step at a position, or as near to it as the cache has room for a row of steps. ``plan`` and
    ``replay``: another than the runner's own."""
    plan = plan or runner.decode_plan
    room = min(256, runner.context // 4)
    position = max(1, min(position, runner.context - room))
    return Subject(
        "decode",
        plan,
        replay or runner.decode.replay,
        ((0, plan.marks["sample_greedy"] + 1),),
        lambda: runner.hold_at(position, params=DRAWING),
        context=position,
        attended=(position + 1) / runner.context,
        most=room - 2,
    )


def chunk_of_prompt(runner: LanguageRunner) -> Subject:
    """The first chunk of a prompt, all of it, up to the head: what a chunk does that is not the last."""
    plan, count = runner.prefill_plan, runner.chunk
    return Subject(
        "prefill",
        plan,
        runner.prefill.replay,
        ((0, plan.marks["logits"]),),
        lambda: runner.hold_at(0, count=count, params=DRAWING),
        tiles=-(-count // plan.tile),
        context=0,
        attended=(count + 1) / 2 / runner.context,
    )


def picture(runner: VisionRunner) -> Subject:
    return Subject("vision", runner.plan, runner.steps.replay, ((0, len(runner.plan.dispatches)),))


def check_resident(streamed: Collection[int], model: str) -> None:
    """Raises ``BadArgument`` for a model that is streamed: kernels alone would read what is not there."""
    if streamed:
        raise BadArgument(f"The weights of {model} do not fit; give the bench a larger pool.", argument="pool")
