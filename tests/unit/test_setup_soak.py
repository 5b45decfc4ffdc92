"""The soak without a browser: what it asks of a page, what it holds against it, and what it prints."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from playwright.async_api import Error as BrowserError

from pyapp.setup.cli import make_parser
from pyapp.setup.soak import client_options, plan_of, table
from pyapp.setup.soaking import PAGE, Check, Plan, Soak

SEEN = {"labels": [1, 2, 3, 4, 5], "source": "device"}
TEXT = {"text": "a text", "reason": "length"}
POOL = 1000
CALLS = ("open", "look", "write(", "cut", "begin", "writing", "memory", "close", "ledger", "soakLedger", "ended")


@dataclass
class FakePage:
    """A page whose client behaves, but for ``faults``: the name of a call -> what its third use gives, or raises."""

    faults: dict[str, Any] = field(default_factory=dict)
    leak: int = 0
    """Bytes that stay on the GPU after each abort."""
    lease: str | None = None
    calls: list[str] = field(default_factory=list)
    moments: list[float] = field(default_factory=list)
    bytes: int = 0
    closed: bool = False

    @property
    def workers(self) -> list[Any]:
        return [self]

    async def evaluate(self, expression: str, argument: Any = None) -> Any:
        named = [] if expression == PAGE else [name for name in CALLS if f".{name}" in expression]
        call = named[0] if named else "page"
        self.calls.append(call)
        if call in self.faults and self.calls.count(call) == 3:
            fault = self.faults[call]
            if isinstance(fault, Exception):
                raise fault
            return fault
        return getattr(self, f"_{call.strip('(')}")(argument)

    async def wait_for_function(self, expression: str) -> None:
        self.calls.append("wait")

    def _page(self, _: Any) -> None: ...

    def _open(self, _: Any) -> None:
        self.bytes = POOL

    def _look(self, _: Any) -> Any:
        return SEEN

    def _write(self, _: Any) -> Any:
        return TEXT

    _writing = _write

    def _begin(self, _: Any) -> None: ...

    def _ended(self, _: Any) -> bool:
        return False

    def _cut(self, moment: float) -> Any:
        self.moments.append(moment)
        self.bytes += self.leak
        return {"text": "", "reason": "abort"}

    def _memory(self, _: Any) -> Any:
        lease = {"holder": self.lease, "waiting": 0}
        return {"live": POOL, "objects": {"slab": 1}, "slabs": [], "tenants": {}, "lease": lease}

    def _soakLedger(self, _: Any) -> Any:
        return {"bytes": self.bytes, "buffers": 1}

    def _close(self, _: Any) -> None:
        self.bytes -= POOL

    def _ledger(self, _: Any) -> Any:
        return {"bytes": self.bytes, "buffers": 0}


async def soaked(page: FakePage, **plan: int) -> tuple[list[Check], int]:
    """The checks, and how often the GPU was taken away."""
    crashes = []

    async def crash() -> None:
        crashes.append(page.calls[-1])

    counts = Plan(**{"alternations": 4, "aborts": 20, "losses": 3, **plan})
    soak = Soak(page, {}, counts, crash, say=lambda _: None)  # type: ignore[arg-type]
    checks = await soak.run()
    assert set(crashes) <= {"wait"}, "the GPU goes in the middle of a text"
    return checks, len(crashes)


def off(checks: list[Check]) -> list[str]:
    return [check.name for check in checks if not check.holds]


async def test_a_page_that_behaves_passes() -> None:
    page = FakePage()
    checks, crashes = await soaked(page, aborts=60)
    assert off(checks) == []
    assert crashes == page.calls.count("writing") == 3
    assert len(page.moments) == 60
    assert {-1, 0} <= set(page.moments)
    again = FakePage()
    await soaked(again, aborts=60)
    assert [moment <= 0 for moment in again.moments] == [moment <= 0 for moment in page.moments]


async def test_a_leak_is_seen() -> None:
    checks, _ = await soaked(FakePage(leak=16))
    assert off(checks) == [
        "bytes on the GPU",
        "bytes on the GPU by our own count and by the ledger",
        "bytes on the GPU once closed",
    ]


@pytest.mark.parametrize(
    ("call", "fault", "said"),
    [
        ("look", {"labels": [9], "source": "device"}, "labels: "),
        ("look", BrowserError("TandemError: gone"), "alternations: TandemError: gone"),
        ("cut", {"text": "", "reason": None}, "abort: None instead of 'abort'"),
        ("cut", BrowserError("TandemError: lost\nstack"), "aborts: TandemError: lost"),
        ("writing", {"text": "a tex", "reason": "length"}, "text after a loss: "),
        ("writing", BrowserError("TandemError: lost"), "losses: TandemError: lost"),
    ],
)
async def test_what_goes_wrong_on_the_way_is_counted(call: str, fault: Any, said: str) -> None:
    checks, _ = await soaked(FakePage({call: fault}))
    assert off(checks) == ["went wrong on the way"]
    ((line, times),) = checks[0].found.items()
    assert line.startswith(said)
    assert times == 1


async def test_a_loss_after_the_end_of_its_text_proves_nothing() -> None:
    page = FakePage(faults={"ended": True})
    checks, _ = await soaked(page)
    assert off(checks) == ["losses in the middle of a text"]


async def test_the_last_answer_waits_for_the_gpu() -> None:
    page = FakePage()
    await soaked(page)
    assert page.calls[page.calls.index("close") - 5 :][:3] == ["write(", "look", "write("]


async def test_aborts_that_never_take_effect_prove_nothing() -> None:
    page = FakePage()
    page._cut = lambda moment: TEXT  # type: ignore[method-assign,assignment]
    assert off((await soaked(page))[0]) == ["some texts were aborted"]
    assert off((await soaked(FakePage(), aborts=0))[0]) == []


async def test_a_lease_that_is_still_held_differs_from_before() -> None:
    page = FakePage()
    alternate = page._cut

    def keep(moment: float) -> Any:
        page.lease = "a text being written"
        return alternate(moment)

    page._cut = keep  # type: ignore[method-assign]
    assert off((await soaked(page))[0]) == ["lease"]


def test_the_table_tells_both_sides() -> None:
    text = table([Check("fine", {"a": 1}, {"a": 1}), Check("bad", 0, 16)]).splitlines()
    assert text[0].split() == ["ok", "fine", "{'a':", "1}"]
    assert text[1].split() == ["OFF", "bad", "16", "instead", "of", "0"]


def test_the_command_line_has_the_long_form() -> None:
    options = make_parser().parse_args(["soak"])
    assert plan_of(options) == Plan(alternations=500, aborts=200, losses=20)
    assert client_options(options)["rebuildsPerHour"] == 1000
    short = make_parser().parse_args(["soak", "--losses", "0", "--model", "smollm2-135m"])
    assert client_options(short) == {
        "adapter": "software", "model": "smollm2-135m", "vision": "efficientnet-lite0", "poolMiB": 900,
    }  # fmt: skip
    assert SimpleNamespace(**vars(short)).seed == 1
