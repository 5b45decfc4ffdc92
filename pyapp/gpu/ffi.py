"""The seam to JavaScript: descriptors, promises and errors. Imported only where a browser is."""

from __future__ import annotations

from typing import Any

from ..errors import DeviceLost, OutOfMemory, TandemError


def js_object(value: Any) -> Any:
    """A Python dict or list (nested) as a plain JavaScript object, for WebGPU descriptors."""
    import js
    from pyodide.ffi import to_js

    return to_js(value, dict_converter=js.Object.fromEntries)


def js_list(values: list[Any]) -> Any:
    """A list of JavaScript objects as an Array that holds those very objects."""
    from pyodide.ffi import to_js

    return to_js(values)


def translated(error: BaseException, doing: str) -> TandemError:
    """A JavaScript exception from WebGPU as ours: what was being done, and what the browser said."""
    if isinstance(error, TandemError):
        return error
    text = str(error)
    if "out of memory" in text.lower() or "OutOfMemory" in text or "RangeError" in text:
        return OutOfMemory(
            f"The GPU ran out of memory while {doing}; close other tabs or choose a smaller pool ({text})."
        )
    return DeviceLost(f"The GPU stopped answering while {doing} ({text}).", doing=doing)
