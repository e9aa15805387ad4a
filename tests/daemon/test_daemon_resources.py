"""Files and directories the configuration names, and where they are looked for."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from bridge.daemon import resources
from bridge.errors import ConfigError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_state_directory_is_where_the_nearest_word_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration, then systemd, then XDG, then the home directory; always absolute."""
    assert resources.state_directory(None) == tmp_path / "home/.local/state/scanbridge"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert resources.state_directory(None) == tmp_path / "home/.local/state/scanbridge"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert resources.state_directory(None) == tmp_path / "xdg/scanbridge"
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/one:{tmp_path}/two")
    assert resources.state_directory(None) == tmp_path / "one"
    assert resources.state_directory("~/state") == tmp_path / "home/state"
    monkeypatch.chdir(tmp_path)
    assert resources.state_directory("here") == tmp_path / "here"


def test_a_file_is_a_credential_or_lies_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd's credential wins; what is no credential, a CA file for instance, is still found."""
    assert resources.locate("/etc/token", tmp_path) == Path("/etc/token")
    assert resources.locate("token", tmp_path) == tmp_path / "token"
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert resources.locate("token", tmp_path) == credentials / "token"  # nowhere: this is where it should be
    (tmp_path / "token").write_text("")
    assert resources.locate("token", tmp_path) == tmp_path / "token"
    (credentials / "token").write_text("")
    assert resources.locate("token", tmp_path) == credentials / "token"


def test_a_secret_is_made_once_and_for_our_eyes_only(tmp_path: Path) -> None:
    """32 random bytes as 64 hex digits; a second start keeps it."""
    path = tmp_path / "token"
    resources.make_secret(path, "key")
    secret = resources.read_secret(path, "key")
    assert len(secret) == 64 and int(secret, 16) and stat.S_IMODE(path.stat().st_mode) == 0o600
    resources.make_secret(path, "key")
    assert resources.read_secret(path, "key") == secret


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Is a directory; put the secret into it"),
        (b"", "must hold one line of at least 8 printable characters"),
        (b"short\n", "must hold one line of at least 8"),
        (b"aaaaaaaaaaaa\nbbbbbbbbbbbb\n", "must hold one line"),
        (b"aaaaaaaaaa aaaaa\n", "without spaces"),
        (b"aaaaaaaaaa\xff\n", "is not plain text"),
    ],
)
def test_an_unusable_secret_is_said_without_what_is_in_it(tmp_path: Path, content: bytes | None, words: str) -> None:
    """The key, the file, and what to do."""
    path = tmp_path / "token"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as raised:
        resources.read_secret(path, "scanner.token_file")
    assert str(raised.value).startswith(f"scanner.token_file: {path} ") and "aaa" not in str(raised.value)


def test_a_secret_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    """With the key's name and what to do."""
    with pytest.raises(ConfigError, match=r"scanner\.token_file: .* cannot be made: .*choose a place"):
        resources.make_secret(tmp_path / "none" / "token", "scanner.token_file")


def test_directories_are_made_for_us_alone(tmp_path: Path) -> None:
    """Mail lies there."""
    made = resources.make_directory(tmp_path / "a" / "b", "key")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
