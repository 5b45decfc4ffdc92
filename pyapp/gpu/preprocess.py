"""Specialises a WGSL file: a few line directives and ``${name}``, in the manner of a C preprocessor.

    //#include "q4.wgsl"          the fragment, specialised with the same values
    //#if name   //#if name == x   //#if not name   //#else   //#endif
    //#for i in n  …  //#endfor   the lines n times, with ${i} replaced (loops that must unroll into registers)

``${name}`` is replaced by the parameter's value; an unknown name is an error, never an empty string.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType
from typing import Any

_DIRECTIVE = re.compile(r"^\s*//#(include|if|else|endif|for|endfor)\b\s*(.*?)\s*$")
_NAME = re.compile(r"\$\{([^}]+)\}")


class PreprocessError(ValueError):
    """A directive that does not parse, or a name that has no value (a programming error, not a user's)."""


def preprocess(text: str, params: Mapping[str, Any], load: Callable[[str], str]) -> str:
    """``text`` with its directives carried out. ``load`` gives a fragment's text by file name."""
    lines, _ = _block(text.splitlines(), 0, params, load, ends=())
    return "\n".join(lines) + "\n"


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<wgsl>", "eval")


def _value(name: str, params: Mapping[str, Any]) -> Any:
    try:
        # Small arithmetic such as ${r * 2 + 1} or ${K / 32} over the parameters; values come from our own lowering.
        return eval(_compiled(name), {"__builtins__": {}}, params)
    except (NameError, SyntaxError, TypeError) as error:
        raise PreprocessError(f"no value for {name!r}: {error}") from None


def _substitute(line: str, params: Mapping[str, Any]) -> str:
    if "${" not in line:
        return line

    def show(match: re.Match[str]) -> str:
        value = _value(match[1], params)
        return repr(value) if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)

    return _NAME.sub(show, line)


def _condition(text: str, params: Mapping[str, Any]) -> bool:
    return bool(_value(text, params))


def _block(
    lines: list[str], at: int, params: Mapping[str, Any], load: Callable[[str], str], ends: tuple[str, ...]
) -> tuple[list[str], int]:
    """Lines from ``at`` up to one of the directives ``ends`` (or the end); returns them and the index of that end."""
    out: list[str] = []
    while at < len(lines):
        match = _DIRECTIVE.match(lines[at])
        if not match:
            out.append(_substitute(lines[at], params))
            at += 1
            continue
        word, argument = match.groups()
        if word in ends:
            return out, at
        if word == "include":
            out.extend(preprocess(load(_substitute(argument, params).strip('"')), params, load).splitlines())
            at += 1
        elif word == "if":
            at = _if(lines, at, argument, params, load, out)
        elif word == "for":
            at = _for(lines, at, argument, params, load, out)
        else:
            raise PreprocessError(f"line {at + 1}: {word} without its beginning")
    if ends:
        raise PreprocessError(f"{' or '.join(ends)} is missing")
    return out, at


def _skip(lines: list[str], at: int, opens: str, ends: tuple[str, ...]) -> int:
    """Index of the matching end from ``at``, without specialising what is left out (its names may have no value)."""
    depth = 0
    while at < len(lines):
        match = _DIRECTIVE.match(lines[at])
        word = match[1] if match else ""
        if word == opens:
            depth += 1
        elif depth == 0 and word in ends:
            return at
        elif word == "end" + opens:
            depth -= 1
        at += 1
    raise PreprocessError(f"{' or '.join(ends)} is missing")


def _if(
    lines: list[str], at: int, condition: str, params: Mapping[str, Any], load: Callable[[str], str], out: list[str]
) -> int:
    if _condition(condition, params):
        taken, end = _block(lines, at + 1, params, load, ("else", "endif"))
        out.extend(taken)
        if "else" in lines[end].split("//#")[1]:
            end = _skip(lines, end + 1, "if", ("endif",))
    else:
        end = _skip(lines, at + 1, "if", ("else", "endif"))
        if "else" in lines[end].split("//#")[1]:
            taken, end = _block(lines, end + 1, params, load, ("endif",))
            out.extend(taken)
    return end + 1


def _for(
    lines: list[str], at: int, clause: str, params: Mapping[str, Any], load: Callable[[str], str], out: list[str]
) -> int:
    name, _, count = clause.partition(" in ")
    end = _skip(lines, at + 1, "for", ("endfor",))
    for i in range(int(_value(count, params))):
        taken, _ = _block(lines[at + 1 : end], 0, {**params, name.strip(): i}, load, ())
        out.extend(taken)
    return end + 1
