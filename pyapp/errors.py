"""Every error that a user of Tandem can meet.

    TandemError                    code              what it means
    ├── NoDevice                   no_device         no usable GPU here, and the call needs one
    ├── DeviceLost                 device_lost       the GPU went away while it was at work
    ├── OutOfMemory                out_of_memory     the GPU, or the pool's budget, has too few bytes
    │   └── OutOfPool              out_of_memory     a slice reaches past the region it belongs to
    ├── BadWeights                 bad_weights       bytes that are not the bytes the manifest promises
    ├── BadModel                   bad_model         a file that is no model, or one we cannot run
    ├── BadImage                   bad_image         a picture that cannot be read
    ├── ContextFull                context_full      more tokens than the context holds
    ├── CloudUnavailable           cloud_unavailable the gateway cannot be reached, or refused
    ├── Busy                       busy              somebody else has held the turn for too long
    │   └── LeaseTimeout           busy              the wait for a lease ran out; names the holder
    ├── Closed                     closed            the client was closed
    │   └── StaleLease             closed            a slice was used after its lease had ended
    └── BadArgument                bad_argument      an argument outside its range

Each carries one clear sentence with the figures and what to do (``message``) and the same figures as data
(``details``). The codes are the public ones of ``tandem.js``: a test pins them.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TandemError(Exception):
    """Base of the hierarchy: ``code`` (public, stable), ``message`` (one sentence), ``details`` (figures)."""

    code: ClassVar[str] = "bad_argument"

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def as_dict(self) -> dict[str, Any]:
        """The error as it crosses to JavaScript and to the wire: ``{code, message, details}``."""
        return {"code": self.code, "message": self.message, "details": self.details}


class NoDevice(TandemError):
    code = "no_device"


class DeviceLost(TandemError):
    code = "device_lost"


class OutOfMemory(TandemError):
    code = "out_of_memory"


class OutOfPool(OutOfMemory):
    pass


class BadWeights(TandemError):
    code = "bad_weights"


class BadModel(TandemError):
    code = "bad_model"


class BadImage(TandemError):
    code = "bad_image"


class ContextFull(TandemError):
    code = "context_full"


class CloudUnavailable(TandemError):
    code = "cloud_unavailable"


class Busy(TandemError):
    code = "busy"


class LeaseTimeout(Busy):
    pass


class Closed(TandemError):
    code = "closed"


class StaleLease(Closed):
    pass


class BadArgument(TandemError):
    code = "bad_argument"
