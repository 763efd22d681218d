"""Addresses of Temporal: of the environment, the address and the options the last word counts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from perdure import TemporalOptions, TemporalTls, UsageError, open_engine
from perdure.engine.temporal.options import TemporalAddress, parse_address
from perdure.engine.temporal.reaching import connect_arguments


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("temporal://host:7000/shop", TemporalAddress("host:7000", "shop")),
        ("temporal://host/shop", TemporalAddress("host:7233", "shop")),
        ("temporal://[::1]:7000/shop", TemporalAddress("[::1]:7000", "shop")),
        ("temporal://host", TemporalAddress("host:7233")),
        ("temporal:///shop.a1b2c", TemporalAddress(None, "shop.a1b2c")),
        ("temporal:///", TemporalAddress()),
        ("temporal://host/shop?tls=true", TemporalAddress("host:7233", "shop", tls=True)),
        ("temporal://host/shop?tls=false&prefix=one", TemporalAddress("host:7233", "shop", tls=False, prefix="one")),
    ],
)
def test_an_address_is_taken_apart_and_put_together(address: str, parsed: TemporalAddress) -> None:
    assert parse_address(address) == parsed
    assert parse_address(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("temporal://host:seven/shop", "Port"),
        ("temporal:/host/shop", "does not begin"),
        ("temporal://host/shop/two", "no namespace"),
        ("temporal://key@host/shop", "secrets"),
        ("temporal://host/shop?tsl=true", "nothing else"),
        ("temporal://host/shop?tls=yes", "nothing else"),
        ("temporal://host/shop?prefix=", "nothing else"),
        ("temporal://host/shop?prefix=a/b", "prefix must be .* letters"),
        ("temporal://host/shop?prefix=" + "x" * 101, "prefix must be a str of 1 to 100"),
    ],
)
def test_a_malformed_address_is_refused_with_an_example(address: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        parse_address(address)
    assert "temporal://localhost:7233/default" in caught.value.message


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ADDRESS", "NAMESPACE", "API_KEY", "TLS", "PROFILE"):
        monkeypatch.delenv(f"TEMPORAL_{name}", raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(tmp_path / "none.toml"))


def test_what_nobody_says_is_as_temporal_has_it() -> None:
    found = connect_arguments(TemporalAddress(), TemporalOptions())
    assert (found["target_host"], found["namespace"]) == ("localhost:7233", "default")
    assert not found.get("tls")


def test_the_environment_says_what_the_address_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", "cloud:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "shop.a1b2c")
    monkeypatch.setenv("TEMPORAL_API_KEY", "from the environment")
    found = connect_arguments(parse_address("temporal:///"), TemporalOptions())
    assert (found["target_host"], found["namespace"]) == ("cloud:7233", "shop.a1b2c")
    assert (found["api_key"], found["tls"]) == ("from the environment", True)
    chosen = connect_arguments(parse_address("temporal://near:1/other?tls=false"), TemporalOptions(api_key="mine"))
    assert (chosen["target_host"], chosen["namespace"]) == ("near:1", "other")
    assert (chosen["api_key"], chosen["tls"]) == ("mine", False)


def test_a_profile_of_temporals_configuration_file_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "temporal.toml"
    file.write_text('[profile.staging]\naddress = "staging:7233"\nnamespace = "trial"\n', encoding="utf-8")
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", str(file))
    found = connect_arguments(TemporalAddress(), TemporalOptions(profile="staging"))
    assert (found["target_host"], found["namespace"]) == ("staging:7233", "trial")


def test_certificates_reach_temporal() -> None:
    tls = TemporalTls(server_root_ca=b"ca", client_cert=b"cert", client_key=b"key", server_name="name")
    found = connect_arguments(TemporalAddress("host:1"), TemporalOptions(tls=tls))["tls"]
    assert (found.server_root_ca_cert, found.client_cert, found.client_private_key) == (b"ca", b"cert", b"key")
    assert found.domain == "name"


@pytest.mark.parametrize(
    ("address", "store", "words"),
    [
        ("temporal://host/shop", None, "store='sqlite:///support.db'"),
        ("temporal://host/shop", "temporal://host/shop", "no address"),
        ("sqlite:///a.db", "sqlite:///b.db", "is the store itself"),
    ],
)
def test_temporal_has_a_store_and_nothing_else_has(address: str, store: str | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        open_engine(address, store=store)


@pytest.mark.parametrize(
    ("option", "bad", "wanted"),
    [
        ("api_key", 3, "a str, or None"),
        ("profile", 3, "a str, or None"),
        ("tls", "yes", "a bool or a TemporalTls, or None"),
        ("prefix", None, "letters"),
        ("prefix", "", "1 to 100"),
        ("prefix", "a b", "letters"),
        ("prefix", "naïve", "letters"),
        ("prefix", "a\n", "letters"),
        ("prefix", "x" * 101, "1 to 100"),
        ("events_per_run", True, "an int of at least 10"),
        ("events_per_run", 9, "an int of at least 10"),
        ("connect_timeout", 10, "a timedelta"),
        ("connect_timeout", timedelta(0), "more than zero"),
        ("connect_timeout", timedelta(seconds=-1), "more than zero"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_when_it_is_given(option: str, bad: object, wanted: str) -> None:
    with pytest.raises(UsageError, match=f"TemporalOptions.{option} is .*it must be .*{wanted}"):
        TemporalOptions(**{option: bad})  # type: ignore[arg-type]  # that is the test


def test_a_certificate_and_its_key_belong_together() -> None:
    with pytest.raises(UsageError, match="client_key is missing"):
        TemporalTls(client_cert=b"cert")
    with pytest.raises(UsageError, match=r"TemporalTls\.server_root_ca is of type str; it must be bytes"):
        TemporalTls(server_root_ca="/etc/ca.pem")  # type: ignore[arg-type]  # that is the test


def test_secrets_are_never_shown() -> None:
    tls = TemporalTls(client_cert=b"cert", client_key=b"hunter2")
    assert "hunter2" not in repr(TemporalOptions(api_key="hunter2", tls=tls))
    with pytest.raises(UsageError) as caught:
        TemporalOptions(api_key=b"hunter2")  # type: ignore[arg-type]  # that is the test
    assert "hunter2" not in caught.value.message
