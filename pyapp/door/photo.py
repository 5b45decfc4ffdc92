"""One photo through the door: bytes, pixels, logits, labels."""

from __future__ import annotations

from typing import Any

from pyapp.door.device import Device
from pyapp.errors import BadArgument
from pyapp.vision.facts import labels
from pyapp.vision.pixels import to_model_input


async def describe_photo(device: Device, image: Any) -> dict[str, Any]:
    """See ``Client.describe``."""
    if device.options.vision is None:
        raise BadArgument("This client was opened without a vision model; open one with vision=efficientnet-lite0.")
    rgb, width, height = await device.services.decode_image(image)
    logits, source = await device.classify(to_model_input(rgb))
    found = labels(logits, await device.site.classes(), k=5)
    return {"labels": found, "source": source, "width": width, "height": height}
