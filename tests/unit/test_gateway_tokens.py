"""Tokens: only what one of the secrets signed, unchanged, and only until it expires."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyapp.gateway.tokens import Claims, Signer, TokenRefused

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
CLAIMS = Claims("pk_rosa_1", "https://shop.rosa.example", 2_000_000_000)
NOW = CLAIMS.expires - 60
TOKEN = Signer([NEW]).sign(CLAIMS)
IN_TOKENS = string.ascii_letters + string.digits + "-_.="


def refused(signer: Signer, token: str, now: float = NOW) -> str:
    with pytest.raises(TokenRefused) as caught:
        signer.verify(token, now)
    return caught.value.reason


@given(
    st.text(max_size=200),
    st.text(max_size=200),
    st.integers(0, 2**40),
    st.floats(-(2.0**40), 2.0**40),
    st.binary(min_size=32, max_size=80),
)
@example("s", "a", 100, 0.0, NEW)
@example("s", "a", 100, -1.0, NEW)
def test_a_token_is_good_until_its_second(site: str, ancestor: str, expires: int, late: float, secret: bytes) -> None:
    claims, signer, now = Claims(site, ancestor, expires), Signer([secret]), expires + late
    token = signer.sign(claims)
    if len(token) > 2048:
        assert refused(signer, token, now) == "bad"
    elif now < expires:
        assert signer.verify(token, now) == claims
    else:
        assert refused(signer, token, now) == "expired"


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from(IN_TOKENS))
@example(len(TOKEN) - 1, "B")
def test_no_character_can_be_changed(at: int, character: str) -> None:
    """Not even the last one, whose low bits base64 leaves unused."""
    changed = TOKEN[:at] + character + TOKEN[at + 1 :]
    if changed != TOKEN:
        assert refused(Signer([NEW]), changed) == "bad"


@given(st.one_of(st.text(max_size=300), st.text(IN_TOKENS, max_size=300).map(lambda text: f"v1.{text}")))
@example("")
@example("v1..")
@example(TOKEN + "=")
@example(TOKEN.rpartition(".")[0] + ".")
@example(TOKEN.replace("v1", "v2"))
@example("v1." + "A" * 100_000)
@example(TOKEN[:-1] + "é")
def test_what_nobody_signed_is_refused(text: str) -> None:
    assert refused(Signer([NEW, OLD]), text) == "bad"


def test_secrets_are_changed_without_a_gap() -> None:
    before, between, after = Signer([OLD]), Signer([NEW, OLD]), Signer([NEW])
    old, new = before.sign(CLAIMS), between.sign(CLAIMS)
    assert old != new
    assert between.verify(old, NOW) == between.verify(new, NOW) == after.verify(new, NOW) == CLAIMS
    assert refused(after, old) == refused(before, new) == "bad"


def test_another_gateways_secret_is_refused() -> None:
    assert refused(Signer([OTHER]), TOKEN) == "bad"


def test_no_secret_is_in_the_repr() -> None:
    assert "nnn" not in repr(Signer([NEW]))
