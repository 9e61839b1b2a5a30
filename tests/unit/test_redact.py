from __future__ import annotations

import base64
import html
import json
import string
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdoctor import redact
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


PEM = "-----BEGIN RSA PRIVATE KEY-----{}-----END RSA PRIVATE KEY-----\n"


def test_a_private_key_is_masked_over_the_lines_of_a_log() -> None:
    printed = "key:\n" + PEM.format("\nMIIEpAIBAAKC\n7x+/Zq==\n") + "done\n"
    assert redact.lines(printed.encode()).decode() == "key:\n" + PEM.format(MASK) + "done\n"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--tokens", "abcd1234", "wxyz5678"], ["--tokens", MASK, MASK]),
        (["-pS3cretWord", "db"], [f"-p{MASK}", "db"]),
    ],
)
def test_secrets_among_several_values_and_glued_to_their_option(argv: list[str], shown: list[str]) -> None:
    assert arguments(argv) == shown
    redact.learn(argv)
    assert MASK in text(f"told {argv[-1]}" if len(argv) > 2 else f"told {argv[0][2:]}")


@pytest.mark.parametrize(
    "argv",
    [
        ["--token", "512"],
        ["--stop-tokens", "<|end|>", "</s>", "12"],
        ["-precision16", "-p8080"],
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
        ('{"name": "DB_PASSWORD", "value": "xyz"}', f'{{"name": "DB_PASSWORD", "value": "{MASK}"}}'),
        ("a\n" + PEM.format("aB3+\nxY") + "b", f"a\n{PEM.format(MASK)}b"),
    ],
)
def test_secrets_inside_text(value: str, shown: str) -> None:
    assert text(value) == shown


@pytest.mark.parametrize(
    "value",
    [
        *(
            "task-sk-1",
            "model(x, pad_token=PAD)",
            "MONKEY=1",
            "http://host:80/a",
            "risk-free",
            "token: hello, tokens: 3.2M",
        ),
        *(
            "api_key=api_key",
            "password=os.environ[NAME]",
            "secret_file: /data/s1.txt",
            "access keys: 12",
            "num_token=1.2e6",
        ),
        *("a credit=c1", "passes: 3a", "AddedToken('<s>', rstrip=False)", "token = tokens[0]", "cookie-cutter 2x"),
    ],
)
def test_text_that_is_no_secret_stays(value: str) -> None:
    assert text(value) == value


@pytest.fixture(autouse=True)
def knowing_nothing() -> Iterator[None]:
    """Know no secrets before a test and after it."""
    redact.forget()
    yield
    redact.forget()


# As long as a secret is at least, and of characters that JSON, URLs and shells write otherwise.
LONG_SECRETS = st.text(string.ascii_letters + string.digits + "-_.!$%+/@é\"' ", min_size=8).map(
    lambda s: f"Zq7{s.strip()}"
)
# In a URL and in a word of a command line no secret has such characters.
WORD_SECRETS = st.text(string.ascii_letters + string.digits + "-_.", min_size=8).map(lambda s: f"Zq7{s}")
FORMS = {
    "option": lambda s: ["--wandb-key", s],
    "word": lambda s: [f"--pw={s}"],
    "short": lambda s: ["-p", s],
    "json": lambda s: ["--config", json.dumps({"a": 1, "api_key": s})],
    "user": lambda s: [f"https://{s}@host/x"],
    "password": lambda s: [f"postgres://me:{s}@host/x"],
    "query": lambda s: [f"https://host/x?a=1&sig={s}&b=2"],
    "basic": lambda s: ["-H", f"Authorization: Basic {s}"],
    "header": lambda s: ["-H", f"token {s}"],
    "hydra": lambda s: [f"db.password={s}"],
    "hydra group": lambda s: [f"db={{user:me,password:{s}}}"],
    "named": lambda s: ["-H", f"X-Api-Key: {s}"],
    "cookie": lambda s: ["-H", f"Cookie: session={s}"],
    "after user": lambda s: ["--user", f"me:{s}"],
    "after user and host": lambda s: ["--proxy", f"me:{s}@host:3128"],
    "whole and after user": lambda s: ["--auth", f"me:{s}"],
    "pass": lambda s: ["--smtp-pass", s],
    "several": lambda s: ["--api-keys", "other-1", s],
    "jwt": lambda s: ["--jwt", s],
    "creds": lambda s: [f"--creds={s}"],
    "libpq": lambda s: ["--dsn", f"host=db user=me password={s} dbname=x"],
    "quoted libpq": lambda s: ["--dsn", f"host=db user=me password='{s}' dbname=x"],
    "connection string": lambda s: ["--db", f"Server=x;Uid=me;Pwd={s};"],
    "account": lambda s: ["--store", f"AccountName=x;AccountKey={s};EndpointSuffix=y"],
    "yaml": lambda s: ["--config", f"lr: 1\napi_key: {s}\n"],
    "toml": lambda s: ["--set", f'password = "{s}"'],
    "call": lambda s: ["--set", f"dict(api_key='{s}')"],
    "json in json": lambda s: ["--config", json.dumps({"env": json.dumps({"api_key": s})})],
    "fragment": lambda s: [f"https://host/#access_token={s}"],
}
VARIABLES = st.sampled_from(
    [
        *(
            "MY_TOKEN",
            "WANDB_API_KEY",
            "KEY_OF_IT",
            "CLIENT_SECRET",
            "PGPASSWORD",
            "MYSQL_PASSWD",
            "MYSQL_PWD",
            "DB_PASS",
        ),
        *("SSHPASS", "CREDS", "MY_JWT", "REDISCLI_AUTH", "SESSION_COOKIE", "PASSPHRASE_OF_IT", "SLACK_WEBHOOK"),
    ]
)


def everywhere(secret: str) -> list[str]:
    """Return how a script may write a secret."""
    written = (
        secret,
        repr(secret),
        json.dumps(secret),
        quote(secret),
        quote(secret, safe=""),
        f"/x/model-{secret}.txt",
        repr(json.dumps(secret)),
        json.dumps(repr(secret)),
        ascii(secret),
        repr(secret.encode()),
        html.escape(secret),
        f"Namespace(password={secret!r}, lr=0.1)",
    )
    return [*written, *(f"ValueError: 401 for {form}, said the server" for form in written)]


def hidden(secret: str) -> bool:
    record = {"reason": everywhere(secret), secret: {"detail": [secret]}}
    in_json = redact.json_text(json.dumps(record, ensure_ascii=False).encode())
    printed = redact.lines("\n".join(everywhere(secret)).encode() + b"\xff\n")
    assert json.loads(in_json), "it is still JSON"
    assert printed.endswith(b"\xff\n")
    return b"Zq7" not in in_json + printed and not any("Zq7" in text(form) for form in everywhere(secret))


@given(LONG_SECRETS, st.sampled_from(["", "me:", "you:", "them:"]))
def test_a_known_secret_is_replaced_in_what_its_bytes_are_encoded_as(secret: str, user: str) -> None:
    redact.forget()
    redact.learn(["--password", secret])
    for encoded in (base64.b64encode(f"{user}{secret}".encode()).decode(), secret.encode().hex()):
        assert encoded not in text(f"Basic-{encoded} was sent")


@given(st.sampled_from(sorted(FORMS)), WORD_SECRETS)
def test_a_secret_of_the_command_line_is_replaced_wherever_it_is_written(form: str, secret: str) -> None:
    argv = ["train.py", *FORMS[form](f"{secret}1a"), "--lr", "0.1"]
    assert "Zq7" not in " ".join(arguments(argv)), "by its form alone"
    redact.forget()
    redact.learn(argv)
    assert hidden(f"{secret}1a")


@given(VARIABLES, LONG_SECRETS)
def test_a_secret_of_the_environment_is_replaced_wherever_it_is_written(name: str, secret: str) -> None:
    redact.forget()
    redact.learn((), {name: secret, "HOME": "/home/me", "DATABASE": f"postgres://me:{quote(secret, safe='')}@host/db"})
    assert hidden(secret)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TOKENIZERS_PARALLELISM", "false"),
        ("KEYTIMEOUT", "10000"),
        ("SSH_KEY", "/home/me/.ssh/id_rsa"),
        ("SORT_KEY", "length"),
        ("DPDOCTOR_TOKEN", "anything-1"),
        ("XKB_DEFAULT_KEYMAP", "us-intl-1"),
    ],
)
def test_variables_that_hold_no_secret(name: str, value: str) -> None:
    redact.learn((), {name: value})
    assert text(f"it is {value}") == f"it is {value}"
    assert not redact.knows_any()


@pytest.mark.parametrize(
    "argv",
    [
        ["--sort-key", "length"],
        ["-p", "5"],
        ["-p", "/"],
        ["--image-key", "pixels"],
        ["--user", "1000:1000"],
        ["--tokens", "a1", "b2"],
        ["--proxy", "http://host:80"],
        ["--pass", "forward"],
        ["--u", "me"],
    ],
)
def test_options_that_hold_no_secret(argv: list[str]) -> None:
    redact.learn(argv)
    assert arguments(argv) == argv
    assert not redact.knows_any()


def test_names_of_fields_and_plain_words_stay_in_json_whatever_is_secret() -> None:
    redact.learn(["--password", "measure", "--db-password", "rank"])
    data = b'{"measure":[1,"measure","rank0"],"reason":"it cannot measure","n":12}'
    assert redact.json_text(data) == data.replace(b"cannot measure", f"cannot {MASK}".encode())


def test_short_secrets_count_as_whole_words() -> None:
    redact.learn(["--password", "abcd", "--other-password", "12345678"])
    assert text("abcd is in abcde, 12345678 in 123456789") == f"{MASK} is in abcde, {MASK} in 123456789"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a line\n\tand another", "a line\n\tand another"),
        ("カーネル 🔥\N{NO-BREAK SPACE}x", "カーネル 🔥\N{NO-BREAK SPACE}x"),
        ("\x1b[1;31mred\x1b[0m\x07\x1b", "red\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}esrever", "\N{REPLACEMENT CHARACTER}esrever"),
        ("\udcff", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_characters_that_command_are_replaced(given: str, shown: str) -> None:
    assert redact.printable(given) == shown
