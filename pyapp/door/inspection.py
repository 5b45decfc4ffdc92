"""The machine's parts, for tests and the curious: ``client.inspect``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from pyapp import timeline
from pyapp.door.device import Device, Which
from pyapp.door.options import Spell, flag, one_of, refuse, string, token_ids, whole
from pyapp.errors import BadArgument, Busy, NoDevice, TandemError
from pyapp.text.prompts import build_messages

PICTURE = 224 * 224 * 3
MAX_GREEDY = 1 << 16
MAX_TIMES = 1000


class Inspect:
    """Every call raises ``NoDevice`` where no model runs on this device. Calls queue with those of the client."""

    def __init__(
        self, device: Device, writing: asyncio.Lock, looking: asyncio.Lock, check_open: Callable[[], None], spell: Spell
    ) -> None:
        self._device = device
        self._writing = writing
        self._looking = looking
        self._check_open = check_open
        self._spell = spell

    async def tokenize(self, text: str, special: bool = True) -> list[int]:
        """Token ids; no BOS is added. ``special``: whether names of special tokens in the text become those tokens."""
        text, special = string("text", text), flag("special", special)
        async with self._engine() as engine:
            return list(engine.tokenizer.encode(text, special=special))

    async def detokenize(self, ids: Any) -> str:
        async with self._engine() as engine:
            return str(engine.tokenizer.decode(token_ids("ids", ids, engine.tokenizer.vocab_size, least=0)))

    async def render(self, messages: Any, generation_prompt: bool = True) -> str:
        """The conversation as the model reads it."""
        generation_prompt = flag(self._spell("generation_prompt"), generation_prompt)
        async with self._engine() as engine:
            return str(engine.chat.render(build_messages(messages=messages), generation_prompt=generation_prompt))

    async def logits(self, ids: Any) -> npt.NDArray[np.float32]:
        """float32 [vocabulary] after the last id, in a fresh context."""
        ids = await self._token_ids(ids)
        async with self._writing, self._engine() as engine:
            return np.ascontiguousarray(await engine.logits(ids), dtype=np.float32)

    async def nll(self, ids: Any) -> npt.NDArray[np.float32]:
        """float32 [ids - 1]: the negative log-likelihood (nats) of each id but the first."""
        ids = await self._token_ids(ids, least=2)
        async with self._writing, self._engine() as engine:
            return np.ascontiguousarray(await engine.nll(ids), dtype=np.float32)

    async def greedy(self, ids: Any, n: int) -> list[int]:
        """The ``n`` ids of highest logit that follow, going on past an end token."""
        ids = await self._token_ids(ids)
        n = whole("n", n, 1, MAX_GREEDY)
        async with self._writing, self._engine() as engine:
            return [int(token) for token in await engine.greedy(ids, n)]

    async def vision(self, picture: Any) -> npt.NDArray[np.float32]:
        """float32 [classes] of 224 x 224 x 3 RGB bytes, on the device."""
        pixels = self._pixels(picture)
        async with self._looking, self._engine("vision") as engine:
            return np.ascontiguousarray(await engine.classify(pixels), dtype=np.float32)

    async def vision_times(self, picture: Any, n: int) -> list[float]:
        """Milliseconds from the submit of a picture that is on the GPU until its logits are read back, ``n`` times:
        ``vision`` without the messages, the queues and the upload around it."""
        pixels = self._pixels(picture)
        n = whole("n", n, 1, MAX_TIMES)
        async with self._looking, self._engine("vision") as engine:
            return [1000 * seconds for seconds in await engine.vision_times(pixels, n)]

    def _pixels(self, picture: Any) -> npt.NDArray[np.uint8]:
        self._check_open()
        try:
            pixels = np.frombuffer(picture, dtype=np.uint8)
        except (TypeError, ValueError):
            raise refuse("picture", f"{PICTURE} bytes (224 x 224 x 3 RGB)", type(picture).__name__) from None
        if pixels.size != PICTURE:
            raise BadArgument(f"picture must be {PICTURE} bytes (224 x 224 x 3 RGB); it was {pixels.size}.")
        return pixels.reshape(224, 224, 3)

    async def memory(self) -> dict[str, Any]:
        """Bytes and objects on the GPU: ``{asked, live, peak, budget, slabs, tenants, objects, moved, moves, lease}``.

        A page may ask many times a second: it takes no turn from another tab, and makes no lost device ready again.
        """
        self._check_open()
        if self._device.present is not None:
            return dict(self._device.present.memory())
        absent = self._device.absent or NoDevice("The device has not been needed yet: the cloud writes first.")
        raise absent if isinstance(absent, Busy) else _no_device(absent)

    async def plan(self, which: str) -> dict[str, Any]:
        """What a forward pass dispatches: ``{rows, activations, dispatchesPerLayer}``."""
        which = one_of("plan", which, ("language", "vision"))
        async with self._engine() as engine:
            return dict(engine.plan(which))

    async def profile(self, which: str) -> list[dict[str, Any]]:
        """How long each kernel takes here: rows of ``{operation, kernel, count, us, bytes, GBps, GFLOPs}``."""
        which = one_of("profile", which, ("language", "vision"))
        async with self._writing, self._looking, self._engine() as engine:
            return list(await engine.profile(which))

    async def selfcheck(self) -> dict[str, Any]:
        """How far each kernel of the language model is from NumPy here: ``{kernels, ms, msAtLoad}``, kernels being rows
        of ``{operation, kernel, error}``. An error of at most 1 is right; ``ms`` is what the check took."""
        async with self._writing, self._engine() as engine:
            return dict(await engine.selfcheck())

    def timeline(self) -> list[dict[str, Any]]:
        """What of the start began and ended when: ``{stage, from, to, needs}``, ms since 1970 (``pyapp.timeline``)."""
        self._check_open()
        return timeline.stages()

    async def _token_ids(self, ids: Any, least: int = 1) -> list[int]:
        async with self._engine() as engine:
            return token_ids("ids", ids, engine.tokenizer.vocab_size, least=least)

    @asynccontextmanager
    async def _engine(self, which: Which = "language") -> AsyncIterator[Any]:
        """The engine, waited for where it is on its way."""
        self._check_open()
        try:
            engine = await self._device.reach(which, patient=True)
        except Busy:
            raise  # there is a device; another tab has it
        except TandemError as error:
            self._check_open()
            raise _no_device(error) from error
        with self._device.working("being inspected"):
            yield engine


def _no_device(error: TandemError) -> NoDevice:
    """Whatever kept the device away, who looks inside finds no device."""
    return error if isinstance(error, NoDevice) else NoDevice(error.message, cause=error.as_dict())
