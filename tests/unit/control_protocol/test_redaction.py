"""What is a secret in a text, and what only looks like one."""

from __future__ import annotations

import pytest

from headgate.control_protocol.redaction import with_url_password_masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (
            "postgresql+psycopg2://u:aB3/xY9+Qz==@db:5432/cat",
            "postgresql+psycopg2://u:***@db:5432/cat",
        ),
        ("postgresql://u:/a//b@db/cat", "postgresql://u:***@db/cat"),
        ("postgresql://u:p@ss@db/cat", "postgresql://u:***@db/cat"),
        ("https://u:pw@h:80/a@b", "https://u:***@h:80/a@b"),
        ("https://u:p/w@h:80/a@b", "https://u:***@h:80/a@b"),
        ("http://u:p/w@a:80,http://v:q/r@b/x", "http://u:***@a:80,http://v:***@b/x"),
        ("http://a:8081,http://u:pw@b:8081", "http://a:8081,http://u:***@b:8081"),
        ("mongodb://u:pw@h1:27017,h2:27017/db", "mongodb://u:***@h1:27017,h2:27017/db"),
    ],
)
def test_a_url_s_password_is_masked_and_no_more(text: str, masked: str) -> None:
    assert with_url_password_masked(f"cannot open {text}, ask me@example") == (
        f"cannot open {masked}, ask me@example"
    )


@pytest.mark.parametrize(
    "text",
    [
        "http://h:80/a@b",
        "http://[::1]:8080/a@b",
        "sc://spark:15002/;user_id=me@example",
        "sasl_ssl://b-1:9096/bootstrap: asked by me@example",
        "abfss://files@account.dfs.core.windows.net/a:b@c",
        "s3://lake/a:b@c",
        "sqlite:////data/a:b@c",
        "http://me:@h/x",
        '{"registry":"http://h:80","owner":"me@example"}',
    ],
)
def test_what_is_no_password_is_shown(text: str) -> None:
    assert with_url_password_masked(text) == text
