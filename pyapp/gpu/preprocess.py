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
from typing import Any, NamedTuple

_DIRECTIVE = re.compile(r"^\s*//#(include|if|else|endif|for|endfor)\b\s*(.*?)\s*$")
_NAME = re.compile(r"\$\{([^}]+)\}")
_ENDS = {"if": ("else", "endif"), "for": ("endfor",)}


class PreprocessError(ValueError):
    """A directive that does not parse, or a name that has no value (a programming error, not a user's)."""


def preprocess(text: str, params: Mapping[str, Any], load: Callable[[str], str]) -> str:
    """``text`` with its directives carried out. ``load`` gives a fragment's text by file name."""
    out: list[str] = []
    _write(parsed(text), params, load, out)
    return "".join(out) or "\n"


class _Lines(NamedTuple):
    """Text, and in every second place an expression whose value goes there."""

    parts: tuple[str, ...]


class _Include(NamedTuple):
    name: _Lines


class _If(NamedTuple):
    condition: str
    then: tuple[_Node, ...]
    otherwise: tuple[_Node, ...]


class _For(NamedTuple):
    name: str
    times: str
    body: tuple[_Node, ...]


_Node = _Lines | _Include | _If | _For


@cache
def parsed(text: str) -> tuple[_Node, ...]:
    """What a text consists of, which does not depend on values: looked through once, and written out for each shader.

    Raises: PreprocessError for directives that do not close, or close nothing.
    """
    nodes, _ = _block(text.splitlines(), 0, ())
    return nodes


def _block(lines: list[str], at: int, ends: tuple[str, ...]) -> tuple[tuple[_Node, ...], int]:
    """The nodes from line ``at`` up to one of the directives ``ends`` (or the end), and the index of that."""
    nodes: list[_Node] = []
    plain: list[str] = []

    def close() -> None:
        if plain:
            nodes.append(_lines("".join(plain)))
            plain.clear()

    while at < len(lines):
        match = _DIRECTIVE.match(lines[at])
        if not match:
            plain.append(lines[at] + "\n")
            at += 1
            continue
        word, argument = match.groups()
        close()
        if word in ends:
            return tuple(nodes), at
        if word == "include":
            nodes.append(_Include(_lines(argument)))
        elif word == "if":
            then, at = _block(lines, at + 1, _ENDS["if"])
            otherwise: tuple[_Node, ...] = ()
            if "else" in lines[at].split("//#")[1]:
                otherwise, at = _block(lines, at + 1, ("endif",))
            nodes.append(_If(argument, then, otherwise))
        elif word == "for":
            name, _, count = argument.partition(" in ")
            body, at = _block(lines, at + 1, _ENDS["for"])
            nodes.append(_For(name.strip(), count, body))
        else:
            raise PreprocessError(f"line {at + 1}: {word} without its beginning")
        at += 1
    if ends:
        raise PreprocessError(f"{' or '.join(ends)} is missing")
    close()
    return tuple(nodes), at


def _lines(text: str) -> _Lines:
    return _Lines(tuple(_NAME.split(text)))


def _write(nodes: tuple[_Node, ...], params: Mapping[str, Any], load: Callable[[str], str], out: list[str]) -> None:
    for node in nodes:
        match node:
            case _Lines(parts):
                _fill(parts, params, out)
            case _Include(name):
                file: list[str] = []
                _fill(name.parts, params, file)
                out.append(preprocess(load("".join(file).strip('"')), params, load))
            case _If(condition, then, otherwise):
                _write(then if _value(condition, params) else otherwise, params, load, out)
            case _For(name, times, body):
                for i in range(int(_value(times, params))):
                    _write(body, {**params, name: i}, load, out)


def _fill(parts: tuple[str, ...], params: Mapping[str, Any], out: list[str]) -> None:
    out.append(parts[0])
    for at in range(1, len(parts), 2):
        value = _value(parts[at], params)
        out.append(repr(value) if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value))
        out.append(parts[at + 1])


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, "<wgsl>", "eval")


_NOTHING: dict[str, Any] = {"__builtins__": {}}


def _value(expression: str, params: Mapping[str, Any]) -> Any:
    if expression in params:  # as most are: names alone
        return params[expression]
    try:
        # Small arithmetic such as ${r * 2 + 1} or ${K / 32} over the parameters; values come from our own lowering.
        return eval(_compiled(expression), _NOTHING, params)
    except (NameError, SyntaxError, TypeError) as error:
        raise PreprocessError(f"no value for {expression!r}: {error}") from None
