"""What callers may ask of the door, checked in one place: every refusal is a ``BadArgument`` that says what is allowed.

Names in the sentences are spelled as the caller spells them: ``max_tokens`` in Python, ``maxTokens`` in JavaScript.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from pyapp.errors import BadArgument
from pyapp.routing.router import Mode
from pyapp.routing.wire import clean_text
from pyapp.text.sampling import SamplingParams

T = TypeVar("T")
Spell = Callable[[str], str]
AdapterWish = Literal["auto", "software", "none"]

DEFAULT_CLOUD = "/api/ai/cloud-stream"
ID_LIMIT = 1 << 32
LIMIT_NAMES = ("maxBufferSize", "maxStorageBufferBindingSize")
LEAST_LIMIT = 1 << 20
MOST_LIMIT = (1 << 53) - 1
"""The largest whole number that JavaScript holds exactly."""
MOST_REBUILDS = 1000
MOST_PRESSURE = 1 << 20
MOST_STALL = 3600
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SITE_KEY = re.compile(r"[A-Za-z0-9_-]{8,128}")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9._:\[\]-]+")


def snake(name: str) -> str:
    """Python's spelling of a name: as it is."""
    return name


def camel(name: str) -> str:
    """JavaScript's spelling of a Python name: ``max_tokens`` -> ``maxTokens``, ``pool_mib`` -> ``poolMiB``."""
    if name == "pool_mib":
        return "poolMiB"
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)


def well_formed(value: Any) -> Any:
    """The same value with lone surrogates (half a character, possible in JavaScript) made U+FFFD, as UTF-8 needs it."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {key: well_formed(item) for key, item in value.items()}
    return [well_formed(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def refuse(name: str, allowed: str, value: Any) -> BadArgument:
    """The error for a value that is not allowed: names the argument, what it may be, and what it was."""
    return BadArgument(f"{name} must be {allowed}; it was {_shown(value)}.", argument=name, allowed=allowed)


def one_of(name: str, value: Any, allowed: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise refuse(name, "one of " + ", ".join(allowed), value)
    return value


def whole(name: str, value: Any, low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``; 5.0 counts, as JavaScript does not tell it from 5."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value != int(value) or not low <= value <= high:
        raise refuse(name, f"a whole number from {low} to {high}", value)
    return int(value)


def number(name: str, value: Any, low: float, high: float) -> float:
    """A number from ``low`` to ``high``."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # no comparison with NaN is true
        raise refuse(name, f"a number from {low} to {high}", value)
    return float(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise refuse(name, "true or false", value)
    return value


def string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise refuse(name, "a string", value)
    return str(well_formed(value))


def token_ids(name: str, value: Any, vocab: int | None, least: int = 1) -> list[int]:
    """A list of at least ``least`` token ids below ``vocab``."""
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        raise refuse(name, f"a list of at least {least} token ids", value)
    ids = [whole(f"{name}[{i}]", item, 0, (vocab or ID_LIMIT) - 1) for i, item in enumerate(value)]
    if len(ids) < least:
        raise refuse(name, f"a list of at least {least} token ids", value)
    return ids


def known(given: Mapping[str, Any], allowed: Sequence[str], what: str, spell: Spell) -> None:
    """Refuses names that nobody reads: a misspelt option must not pass in silence."""
    strange = [name for name in given if name not in allowed]
    if strange:
        names = ", ".join(map(spell, allowed))
        raise BadArgument(f"{what} does not know {', '.join(map(spell, strange))}; it takes {names}.", unknown=strange)


@dataclass(frozen=True)
class ClientOptions:
    """How a client is opened: see ``Client.create``."""

    model: str = "smollm2-135m"
    vision: str | None = "efficientnet-lite0"
    mode: Mode = "prefer_on_device"
    pool_mib: int = 900
    cloud: str | None = DEFAULT_CLOUD
    adapter: AdapterWish = "auto"
    rebuilds_per_hour: int = 6
    cloud_below: float = 0.7
    stream_below: float = 1.0
    limits: dict[str, int] | None = None
    context_pressure: int | None = 2048
    stall_seconds: float | None = 30.0
    site: str | None = None
    ancestor: str | None = None
    cloud_while_loading: bool = True
    tune: bool = False
    telemetry: str | None = None

    @classmethod
    def checked(cls, given: Mapping[str, Any], spell: Spell = snake) -> ClientOptions:
        """Options from keywords. Raises: BadArgument."""
        known(given, OPTION_NAMES, "Client.create", spell)
        full = {**{name: field.default for name, field in cls.__dataclass_fields__.items()}, **given}
        model = full["model"]
        if not isinstance(model, str) or not (_NAME.fullmatch(model) or is_url(model)):
            raise refuse(spell("model"), "the name of a model of this site, or the URL of a .gguf file", model)
        vision = _text_or_none(
            spell("vision"), full["vision"], _NAME.fullmatch, "the name of a vision model of this site"
        )
        cloud = _text_or_none(spell("cloud"), full["cloud"], str.strip, "the URL of the gateway's stream")
        mode = one_of(spell("mode"), full["mode"], get_args(Mode))
        if mode == "only_in_cloud" and cloud is None:
            raise refuse(spell("cloud"), "a URL when mode is only_in_cloud", cloud)
        telemetry = _text_or_none(
            spell("telemetry"), full["telemetry"], str.strip, "the URL that takes records of texts"
        )
        if mode == "only_on_device" and telemetry is not None:
            raise refuse(spell("telemetry"), "null when mode is only_on_device, which sends nothing out", telemetry)
        return cls(
            model=model,
            vision=vision,
            mode=mode,  # type: ignore[arg-type]
            pool_mib=whole(spell("pool_mib"), full["pool_mib"], 1, 1 << 16),
            cloud=cloud,
            adapter=one_of(spell("adapter"), full["adapter"], get_args(AdapterWish)),  # type: ignore[arg-type]
            rebuilds_per_hour=whole(spell("rebuilds_per_hour"), full["rebuilds_per_hour"], 0, MOST_REBUILDS),
            cloud_below=number(spell("cloud_below"), full["cloud_below"], 0, 1),
            stream_below=number(spell("stream_below"), full["stream_below"], 1, 2),
            limits=_limits(spell("limits"), full["limits"]),
            context_pressure=_checked_or_none(
                spell("context_pressure"), full["context_pressure"], whole, 1, MOST_PRESSURE, "a whole number of tokens"
            ),
            stall_seconds=_checked_or_none(
                spell("stall_seconds"), full["stall_seconds"], number, 1, MOST_STALL, "a number of seconds"
            ),
            site=_text_or_none(
                spell("site"), full["site"], _SITE_KEY.fullmatch, "a site key of 8 to 128 letters, digits, - or _"
            ),
            ancestor=_text_or_none(
                spell("ancestor"), full["ancestor"], _ORIGIN.fullmatch, "an origin such as https://shop.example"
            ),
            cloud_while_loading=flag(spell("cloud_while_loading"), full["cloud_while_loading"]),
            tune=flag(spell("tune"), full["tune"]),
            telemetry=telemetry,
        )


def _limits(name: str, value: Any) -> dict[str, int] | None:
    """Bytes by the names that WebGPU gives its limits. Raises: BadArgument."""
    if value is None:
        return None
    if not isinstance(value, Mapping) or not set(value) <= set(LIMIT_NAMES):
        raise refuse(name, f"null, or an object with {' and '.join(LIMIT_NAMES)} in bytes", value)
    return {key: whole(f"{name}.{key}", value[key], LEAST_LIMIT, MOST_LIMIT) for key in value}


def _checked_or_none(
    name: str, value: Any, check: Callable[[str, Any, Any, Any], T], low: float, high: float, what: str
) -> T | None:
    """None, or ``what`` from ``low`` to ``high`` by ``check`` (``whole``, ``number``). Raises: BadArgument."""
    if value is None:
        return None
    try:
        return check(name, value, low, high)
    except BadArgument:
        raise refuse(name, f"{what} from {low} to {high}, or null", value) from None


def _text_or_none(name: str, value: Any, fits: Callable[[str], object], allowed: str) -> str | None:
    """None, or a string that ``fits``. Raises: BadArgument."""
    if value is not None and (not isinstance(value, str) or not fits(value)):
        raise refuse(name, f"{allowed}, or null", value)
    return value


OPTION_NAMES: tuple[str, ...] = tuple(ClientOptions.__dataclass_fields__)


def is_url(model: str) -> bool:
    """Whether a ``model`` is an address rather than the name of a model of this site."""
    return model.split("?")[0].split("#")[0].lower().endswith(".gguf")


SAMPLING_NAMES: tuple[str, ...] = ("max_tokens", "temperature", "top_k", "top_p", "seed")
PROMPT_NAMES: tuple[str, ...] = ("prompt", "messages", "facts", "brief")


def sampling_params(given: Mapping[str, Any], spell: Spell = snake) -> SamplingParams:
    """Sampling parameters from keywords, the others at their defaults. Raises: BadArgument."""
    try:
        return SamplingParams(**{name: given[name] for name in SAMPLING_NAMES if name in given}).validated()
    except BadArgument as error:
        name = str(error.details.get("name", ""))
        spelt = error.message.replace(name, spell(name), 1).replace(" is 'None':", " is null:")
        raise BadArgument(spelt, **error.details | {"name": spell(name)}) from None
