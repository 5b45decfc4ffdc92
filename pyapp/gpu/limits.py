"""What lowering must know of a device: plain figures, so that tests can lower for devices that they do not have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class DeviceLimits:
    """Limits and features that kernels are picked by. Bytes, invocations.

    ``subgroup`` is the smallest subgroup size the device may run with, 0 where subgroups are not offered.
    ``packed_dot``: whether products of four bytes at a time are known to be instructions, and worth it.
    """

    max_binding: int = 128 << 20
    max_buffer: int = 256 << 20
    max_workgroup_storage: int = 16384
    max_invocations: int = 256
    max_workgroups: int = 65535
    max_storage_buffers: int = 8
    subgroup: int = 0
    subgroup_max: int = 0
    f16: bool = False
    packed_dot: bool = False
    software: bool = False

    def lowered(self, limits: Mapping[str, int]) -> DeviceLimits:
        """With a smaller ``maxBufferSize`` and ``maxStorageBufferBindingSize`` where ``limits`` names them."""
        return replace(
            self,
            max_buffer=min(self.max_buffer, limits.get("maxBufferSize", self.max_buffer)),
            max_binding=min(self.max_binding, limits.get("maxStorageBufferBindingSize", self.max_binding)),
        )
