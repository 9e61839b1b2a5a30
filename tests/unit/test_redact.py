from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor.redact import MASK, arguments, text

# Marked, so that a test can ask whether any of it is left.
SECRETS = st.text(string.ascii_letters + string.digits + "-_.!$%+", min_size=1).map(lambda s: f"Zq{s}")
WORDS = st.text(string.printable)
SECRET_OPTIONS = st.sampled_from(
    [
        "--password",
        "--db-passwd",
        "--passphrase",
        "--token",
        "--hf_token",
        "--accessToken",
        "--api-key",
        "--apikey",
        "--AWS_SECRET",
        "--client-secret",
        "--auth-key",
        "--credentials",
        "--private_key",
    ]
)


@given(SECRET_OPTIONS, SECRETS, st.booleans())
def test_the_value_of_a_secret_option_is_gone_and_the_rest_is_there(option: str, secret: str, one_word: bool) -> None:
    given_option = [f"{option}={secret}"] if one_word else [option, secret]
    shown = arguments(["train.py", *given_option, "--lr", "0.1"])
    assert "Zq" not in " ".join(shown)
    assert shown[0] == "train.py"
    assert shown[-2:] == ["--lr", "0.1"]
    assert option in shown[1]
    assert len(shown) == len(given_option) + 3


@given(st.lists(WORDS))
def test_a_command_line_keeps_its_length_and_is_redacted_once_and_for_all(argv: list[str]) -> None:
    shown = arguments(argv)
    assert len(shown) == len(argv)
    assert arguments(shown) == shown


@given(WORDS)
def test_text_is_redacted_once_and_for_all(value: str) -> None:
    assert text(text(value)) == text(value)


@pytest.mark.parametrize(
    "argv",
    [
        ["--token", "512"],
        ["--max-token=512"],
        ["--max-tokens", "many"],
        ["--tokenizer", "gpt2"],
        ["--keyboard", "x"],
        ["--data", "/data/secretary/train"],
        ["--api-key", "--verbose"],
        ["lr=0.1", "model=resnet50"],
        ["-c", "https://host:8080/path"],
    ],
)
def test_what_is_no_secret_stays(argv: list[str]) -> None:
    assert arguments(argv) == argv


def test_a_password_of_digits_is_still_a_password() -> None:
    assert arguments(["--password", "12345", "--api-key=678"]) == ["--password", MASK, f"--api-key={MASK}"]


def test_a_secret_url_keeps_neither_user_nor_query() -> None:
    assert arguments(["https://me:pw@host/?token=abc"]) == [f"https://{MASK}@host/?token={MASK}"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("key hf_abcdefghijklmnopqrst!", f"key {MASK}!"),
        ("sk-0123456789abcdefXYZ", MASK),
        ("a ghp_0123456789abcdefXYZ b", f"a {MASK} b"),
        ("AKIAABCDEFGHIJKLMNOP", MASK),
        ("Authorization: Bearer abc.def-123", f"Authorization: {MASK}"),
        ("s3 at http://me:p@ss@host/x", f"s3 at http://{MASK}@host/x"),
        ("redis://:hunter2@host:6379", f"redis://{MASK}@host:6379"),
        ("get https://host/?a=1&api_key=xyz&b=2", f"get https://host/?a=1&api_key={MASK}&b=2"),
        ("WANDB_API_KEY=xyz python train.py", f"WANDB_API_KEY={MASK} python train.py"),
        ("HF_TOKEN=xyz", f"HF_TOKEN={MASK}"),
    ],
)
def test_secrets_inside_text(value: str, shown: str) -> None:
    assert text(value) == shown


@pytest.mark.parametrize("value", ["task-sk-1", "model(x, pad_token=PAD)", "MONKEY=1", "http://host:80/a", "risk-free"])
def test_text_that_is_no_secret_stays(value: str) -> None:
    assert text(value) == value
