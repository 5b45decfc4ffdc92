"""The operator's file: what it can say, and a sentence that names the place for everything that it cannot."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route

from pyapp.errors import BadArgument
from pyapp.gateway import config
from pyapp.gateway.app import create_app
from pyapp.gateway.config import Config, load_config, parse_secrets
from pyapp.gateway.limits import Caps
from pyapp.gateway.origins import matches, parse_origin, parse_pattern
from pyapp.gateway.settings import Settings

SITE = '[sites.a]\nkey = "pk_aaaaaa"\nancestors = ["https://a.example"]\n'


def load(folder: Path, text: str) -> Config:
    (file := folder / "gateway.toml").write_text(text)
    return load_config(file)


def test_the_example_in_the_module_is_a_whole_configuration(tmp_path: Path) -> None:
    assert config.__doc__
    example = "\n".join(line[4:] for line in config.__doc__.splitlines() if line.startswith("    "))
    loaded = load(tmp_path, example)
    (site,) = loaded.sites
    assert (site.name, site.key) == ("rosa", "pk_rosa_5f2c9e")
    assert site.ancestors == ("https://shop.rosa.example", "https://*.rosa.example")
    assert site.caps == Caps(600, 100, 5_000_000)
    assert loaded.client == Caps(30, 3, 100_000)
    assert [str(network) for network in loaded.trusted_proxies] == ["10.0.0.0/8"]
    assert loaded.token_seconds == 300


def test_the_deployment_page_names_what_there_is(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [site.name for site in load(tmp_path, toml).sites] == ["rosa", "own"]
    known = {f"TANDEM_{item.name.upper()}" for item in fields(Settings)}
    assert set(re.findall(r"TANDEM_[A-Z_]+", page)) <= known
    (tmp_path / "metrics.toml").write_text(toml)
    app = create_app(
        None,
        Settings(embedded="off", config=tmp_path / "metrics.toml", token_secrets="s" * 32, metrics_key="k"),
    )
    addresses = {route.path for route in app.routes if isinstance(route, Route)}
    assert set(re.findall(r"(?:GET|POST) (/[a-z/-]+)", page)) <= addresses


def test_nothing_is_limited_that_is_not_in_the_file(tmp_path: Path) -> None:
    assert load_config(None) == load(tmp_path, "") == Config()
    assert load(tmp_path, SITE).sites[0].caps == Caps()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[sites", "not valid TOML"),
        ("[client]\nrequests_per_min = 5", "'requests_per_min' in [client] is not known; known are concurrent"),
        ("[clients]\nconcurrent = 5", "'clients' in the file is not known"),
        ("[client]\nconcurrent = 0", "concurrent in [client] must be a whole number above 0"),
        ("[client]\nconcurrent = true", "must be a whole number"),
        ("[client]\nconcurrent = 1.5", "must be a whole number"),
        ("client = 5", "client in the file must be a table"),
        ("token_seconds = -1", "token_seconds in the file"),
        ('trusted_proxies = "10.0.0.0/8"', "trusted_proxies in the file must be a list of texts"),
        ('trusted_proxies = ["proxy"]', "'proxy' is no network"),
        ("[sites]\na = 5", "[sites.a] must be a table"),
        (SITE.replace("sites.a", 'sites."A b"'), "lower-case letters"),
        (SITE.replace("pk_aaaaaa", "short"), "key in [sites.a] must have 8"),
        (SITE.replace("pk_aaaaaa", "pk_aaaaaa;*"), "key in [sites.a] must have 8"),
        (SITE.replace('"https://a.example"', ""), "ancestors in [sites.a] must list at least one"),
        (SITE.replace("a.example", "a.example/path"), "is no ancestor origin"),
        (SITE + "limit = 5", "'limit' in [sites.a] is not known"),
        (SITE + SITE.replace("sites.a", "sites.b"), "two sites have the same key"),
    ],
)
def test_what_makes_no_sense_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(message)) as caught:
        load(tmp_path, text)
    assert str(tmp_path / "gateway.toml") in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"cannot be read \(No such file"):
        load_config(tmp_path / "none.toml")


def test_secrets() -> None:
    assert parse_secrets(None) == parse_secrets(" ") == ()
    assert parse_secrets("a" * 32 + ", " + "b" * 64) == (b"a" * 32, b"b" * 64)
    with pytest.raises(BadArgument, match="less than 32 characters") as caught:
        parse_secrets("a" * 32 + ",hunter2")
    assert "hunter2" not in caught.value.message


def test_they_come_from_the_environment() -> None:
    settings = Settings.from_env({"TANDEM_CONFIG": "/etc/gateway.toml", "TANDEM_TOKEN_SECRETS": "s3cret" * 8})
    assert settings.config == Path("/etc/gateway.toml")
    assert parse_secrets(settings.token_secrets) == (b"s3cret" * 8,)
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("https://Shop.Example", "https://shop.example"),
        ("https://shop.example/", "https://shop.example"),
        ("https://shop.example:443", "https://shop.example"),
        ("http://localhost:8080", "http://localhost:8080"),
        ("http://[::1]:5000", "http://[::1]:5000"),
        ("https://*.shop.example", "https://*.shop.example"),
    ],
)
def test_patterns(text: str, pattern: str) -> None:
    assert parse_pattern(text) == pattern


@pytest.mark.parametrize(
    "text",
    [
        "*",
        "https://*",
        "https://*.example",
        "https://shop.*",
        "shop.example",
        "https:",
        "'self'",
        "https://a.example; script-src *",
        "https://a.example https://b.example",
        "https://a.example\n",
        "https://bücher.example",
        "https://a..example",
        "https://user@a.example",
        "javascript://a.example",
        "https://a.example:",
        "https://" + "a" * 400,
    ],
)
def test_what_is_no_pattern(text: str) -> None:
    if text != "https://a.example\n":
        with pytest.raises(BadArgument, match="is no ancestor origin"):
            parse_pattern(text)
    assert parse_origin(text) is None


@pytest.mark.parametrize(
    ("pattern", "origin", "fits"),
    [
        ("https://a.example", "https://a.example", True),
        ("https://a.example", "http://a.example", False),
        ("https://a.example", "https://a.example:8443", False),
        ("https://a.example", "https://b.a.example", False),
        ("https://*.a.example", "https://b.a.example", True),
        ("https://*.a.example", "https://c.b.a.example", True),
        ("https://*.a.example", "https://a.example", False),
        ("https://*.a.example", "https://evila.example", False),
        ("https://*.a.example", "https://b.a.example.evil.example", False),
        ("https://*.a.example", "http://b.a.example", False),
        ("https://*.a.example", "https://b.a.example:8443", False),
        ("https://*.a.example:8443", "https://b.a.example:8443", True),
    ],
)
def test_which_origins_a_pattern_allows(pattern: str, origin: str, fits: bool) -> None:
    assert parse_pattern(pattern) == pattern
    assert parse_origin(origin) == origin
    assert matches(pattern, origin) is fits


@given(st.text(max_size=60).map(lambda text: f"https://{text}"))
def test_nothing_gets_into_the_policy_that_could_end_a_source(text: str) -> None:
    try:
        pattern = parse_pattern(text)
    except BadArgument:
        return
    assert re.fullmatch(r"https://[a-z0-9_.:\[\]*-]+", pattern)
