"""What can fail on a visit, and what the visit must then end in.

A fault lies on the device's side or on the cloud's. The browser's are injected by ``data/faults.js``, those of the
weights and the gateway by the server (``world``), the crash of the GPU process by the driver.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

Mode = Literal["prefer_on_device", "only_on_device", "prefer_in_cloud", "only_in_cloud"]
Where = Literal["browser", "driver", "weights", "gateway", "upstream"]
MOMENTS = (1, 7, 40)
"""After how many tokens of text a fault in the middle of it comes, or pieces of the cloud's."""


@dataclass(frozen=True)
class Fault:
    """One way to fail. ``moments``: where in the text it may come; () for one that comes before any text.

    ``cured``: the side does its work all the same. ``code``: of the error where nobody else may answer. ``seconds``: by
    how much it makes a visit longer; those that do so by much are for the long form.
    """

    name: str
    where: Where
    code: str
    moments: tuple[int, ...] = ()
    cured: bool = False
    seconds: float = 0.0


NONE = Fault("none", "browser", "", cured=True)

DEVICE = (
    NONE,
    Fault("no_webgpu", "browser", "no_device"),
    Fault("no_adapter", "browser", "no_device"),
    Fault("adapter_refused", "browser", "no_device"),
    Fault("device_refused", "browser", "no_device"),
    Fault("small_limits", "browser", "out_of_memory"),
    Fault("out_of_memory", "browser", "out_of_memory"),
    Fault("broken_shader", "browser", "no_device"),
    Fault("loss", "browser", "device_lost", MOMENTS, cured=True),
    Fault("crash", "driver", "device_lost", MOMENTS, cured=True),
    Fault("no_second_adapter", "browser", "device_lost", MOMENTS),
    Fault("refused_call", "browser", "device_lost", MOMENTS, cured=True),
    Fault("read_refused", "browser", "device_lost", MOMENTS),
    Fault("no_python", "browser", "no_device"),
    Fault("worker_dies", "browser", "no_device", MOMENTS),
    Fault("weights_corrupt", "weights", "bad_weights"),
    Fault("weights_corrupt_once", "weights", "bad_weights", cured=True),
    Fault("weights_missing", "weights", "bad_weights"),
    Fault("weights_html", "weights", "bad_weights"),
    Fault("weights_cut", "weights", "bad_weights", seconds=8),
    Fault("weights_cut_once", "weights", "bad_weights", cured=True),
    Fault("weights_stall", "weights", "bad_weights", seconds=150),
    Fault("stall", "browser", "device_lost", MOMENTS, seconds=8),
    Fault("wrong_result", "browser", "device_lost"),
)
CLOUD = (
    NONE,
    Fault("down", "gateway", "cloud_unavailable"),
    Fault("html", "gateway", "cloud_unavailable"),
    Fault("busy", "gateway", "cloud_unavailable"),
    Fault("broken", "gateway", "cloud_unavailable"),
    Fault("cut", "gateway", "cloud_unavailable", MOMENTS),
    Fault("closed", "gateway", "cloud_unavailable", MOMENTS),
    Fault("slow", "upstream", "cloud_unavailable", cured=True),
    Fault("silent", "upstream", "cloud_unavailable"),
    Fault("upstream_busy", "upstream", "cloud_unavailable"),
    Fault("upstream_broken", "upstream", "cloud_unavailable"),
    Fault("upstream_busy_once", "upstream", "cloud_unavailable", cured=True),
    Fault("error_inside", "upstream", "cloud_unavailable", MOMENTS),
    Fault("upstream_cut", "upstream", "cloud_unavailable", MOMENTS),
    Fault("upstream_stalls", "upstream", "cloud_unavailable", MOMENTS),
)
STYLES = ("exact", "restarted", "last_words")
"""How the upstream goes on with a text that the device began."""
LONG = 1.0
"""Seconds: visits with slower faults are only dealt in the long form."""
ENDLESS = 60.0
"""Seconds: slower ones only where somebody else writes meanwhile."""
BOTH = 0.25
"""Share of the visits with a fault of the device in which the cloud fails too."""


@dataclass(frozen=True)
class Visit:
    """What is done on one visit. ``fresh``: nothing is stored yet, so the weights are fetched."""

    number: int
    mode: Mode
    device: Fault
    device_at: int
    cloud: Fault
    cloud_at: int
    style: str
    fresh: bool
    early: bool = False
    """Whether the client is there before its models (``cloudWhileLoading``)."""

    @property
    def allows_cloud(self) -> bool:
        return self.mode != "only_on_device"

    @property
    def allows_device(self) -> bool:
        return self.mode != "only_in_cloud"

    @property
    def wanted(self) -> Literal["text", "error"]:
        """What it must end in."""
        able = (self.allows_device and self.device.cured) or (self.allows_cloud and self.cloud.cured)
        return "text" if able else "error"

    @property
    def codes(self) -> set[str]:
        """Of the error that it may end in."""
        return {
            *({self.device.code} if self.allows_device else ()),
            *({self.cloud.code} if self.allows_cloud else ()),
        }

    def __str__(self) -> str:
        device = f"{self.device.name}@{self.device_at}" if self.device.moments else self.device.name
        cloud = f"{self.cloud.name}@{self.cloud_at}" if self.cloud.moments else self.cloud.name
        more = f"{', fresh' * self.fresh}{', early' * self.early}"
        return f"{self.number}: {self.mode}, device {device}, cloud {cloud}, {self.style}{more}"


def deal(count: int, seed: int) -> list[Visit]:
    """``count`` visits. Every fault comes once before any comes twice; all else about it is drawn."""
    chance = random.Random(seed)
    known = [(fault, True) for fault in DEVICE] + [(fault, False) for fault in CLOUD[1:]]
    if count < 2 * len(known):
        known = [(fault, is_device) for fault, is_device in known if fault.seconds < LONG]
    visits: list[Visit] = []
    while len(visits) < count:
        round_of = chance.sample(known, len(known))
        visits += [_visit(chance, len(visits) + at, fault, is_device) for at, (fault, is_device) in enumerate(round_of)]
    return visits[:count]


def _visit(chance: random.Random, number: int, fault: Fault, is_device: bool) -> Visit:
    modes: dict[bool, tuple[Mode, ...]] = {
        True: ("prefer_on_device", "prefer_on_device", "only_on_device"),
        False: ("prefer_in_cloud", "prefer_in_cloud", "only_in_cloud"),
    }
    mode = "prefer_on_device" if fault.seconds > ENDLESS else chance.choice(modes[is_device])
    other = NONE
    if chance.random() < BOTH and mode not in ("only_on_device", "only_in_cloud") and fault.seconds <= ENDLESS:
        # Those that keep the other side from its work altogether, so that it is both sides that are down.
        others = CLOUD[1:] if is_device else DEVICE[1:]
        other = chance.choice([each for each in others if not each.cured and each.seconds < LONG])
    device, cloud = (fault, other) if is_device else (other, fault)
    device_at = chance.choice(device.moments or (0,))
    return Visit(
        number,
        mode,
        device,
        device_at,
        cloud,
        chance.choice(cloud.moments or (0,)),
        # After one word nobody can tell a new beginning from a text that says it twice.
        "exact" if device_at == MOMENTS[0] else chance.choice(STYLES),
        fresh=device.where == "weights" or chance.random() < 0.5,
        # What fails in the middle of the device's text needs a device that is there from the first.
        early=fault.seconds > ENDLESS or (not device.moments and chance.random() < 0.5),
    )
