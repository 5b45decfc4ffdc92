"""The directives that specialise WGSL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyapp.gpu.preprocess import PreprocessError, preprocess

SHADERS = Path(__file__).parents[2] / "shaders"


def lines(text: str, files: dict[str, str] | None = None, **params: Any) -> list[str]:
    """What is left of ``text``, without blanks."""
    return preprocess(text, params, (files or {}).__getitem__).split()


def test_values_and_arithmetic_are_put_in() -> None:
    assert lines("a[${n}u] = ${n * 2 + 1};", n=4) == ["a[4u]", "=", "9;"]
    assert lines("${x} ${y} ${z} ${-k // 2}", x=1.0, y=True, z="relu6", k=5) == ["1.0", "1", "relu6", "-3"]
    assert lines("${1.0 / n} ${e}", n=3, e=1e-6) == [repr(1 / 3), "1e-06"]


def test_an_unknown_name_is_an_error_and_not_nothing() -> None:
    for text in (
        "${missing}",
        "//#if missing\n//#endif",
        "//#for i in missing\n//#endfor",
        "${n +}",
        "${n.real}x${__import__('os')}",
    ):
        with pytest.raises(PreprocessError, match="no value"):
            lines(text, n=1)


def test_if_and_else() -> None:
    text = '//#if mode == "x"\none\n//#else\ntwo\n//#endif\nend'
    assert lines(text, mode="x") == ["one", "end"]
    assert lines(text, mode="y") == ["two", "end"]
    assert lines("  //#if not flag\nno\n  //#endif\n", flag=True) == []


@pytest.mark.parametrize(("a", "b", "wanted"), [(1, 1, "ab"), (1, 0, "a-b"), (0, 1, "-a"), (0, 0, "-a")])
def test_nested_branches(a: int, b: int, wanted: str) -> None:
    text = "//#if a\n//#if b\nab\n//#else\na-b\n//#endif\n//#else\n-a\n//#endif"
    assert lines(text, a=a, b=b) == [wanted]


def test_what_is_left_out_needs_no_values() -> None:
    assert lines("//#if a\n${nowhere}\n//#for i in nowhere\n//#endfor\n//#else\nb\n//#endif", a=0) == ["b"]
    assert lines("//#if a\nb\n//#else\n//#if nowhere\n//#endif\n${nowhere}\n//#endif", a=1) == ["b"]


def test_loops_unroll_and_nest() -> None:
    assert lines("//#for i in n\nv${i}\n//#endfor\nend", n=3) == ["v0", "v1", "v2", "end"]
    nested = "//#for i in 2\n//#for j in i + 1\n${i}${j}\n//#endfor\n//#if i == 1\nlast\n//#endif\n//#endfor"
    assert lines(nested) == ["00", "10", "11", "last"]
    assert lines("//#for i in 0\nnever\n//#endfor") == []


def test_fragments_get_the_same_values() -> None:
    files = {"outer.wgsl": '//#include "inner.wgsl"\nouter${n}', "inner.wgsl": "inner${n}"}
    assert lines('//#include "outer.wgsl"\nmain', files, n=1) == ["inner1", "outer1", "main"]
    assert lines('//#for i in 2\n//#include "inner.wgsl"\n//#endfor', {"inner.wgsl": "x${i}"}) == ["x0", "x1"]
    assert lines('//#include "${name}.wgsl"', {"b.wgsl": "yes"}, name="b") == ["yes"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("//#if 1\nx", "else or endif is missing"),
        ("//#for i in 1\nx", "endfor is missing"),
        ("//#endif", "line 1: endif without its beginning"),
        ("x\n//#else", "line 2: else without its beginning"),
        ("//#for i in 1\n//#endif\n//#endfor", "endif without its beginning"),
    ],
)
def test_what_does_not_close_is_an_error(text: str, words: str) -> None:
    with pytest.raises(PreprocessError, match=words):
        lines(text)


def test_other_comments_stay() -> None:
    assert lines("// #if\n// plain") == ["//", "#if", "//", "plain"]


def test_every_shader_closes_what_it_opens() -> None:
    for path in SHADERS.glob("*.wgsl"):
        words = [
            line.split("//#")[1].split()[0] for line in path.read_text(encoding="utf-8").splitlines() if "//#" in line
        ]
        assert words.count("if") == words.count("endif"), path.name
        assert words.count("for") == words.count("endfor"), path.name
        assert set(words) <= {"include", "if", "else", "endif", "for", "endfor"}, path.name
