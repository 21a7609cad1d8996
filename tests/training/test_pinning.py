"""The digests of a build reach the environment's file, and nothing else in it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.load import ENVIRONMENTS, load, parse
from training.pinning import NotPinned, pin

DIGEST, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
NAMES = sorted(path.stem for path in ENVIRONMENTS.glob("*.yaml"))


@pytest.fixture(params=NAMES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text((ENVIRONMENTS / f"{request.param}.yaml").read_text())
    return path


def test_the_environment_differs_in_the_digest_alone_and_keeps_its_comments(file: Path) -> None:
    before, text = load(str(file)), file.read_text()
    assert pin(file, {"digest": DIGEST, "base_digest": OTHER})
    after = load(str(file))
    assert (after.image.digest, after.image.base_digest) == (DIGEST, OTHER)
    assert after.model_copy(update={"image": before.image}) == before
    lines = file.read_text().splitlines()
    assert [line for line in text.splitlines() if line not in lines] == []


def test_pinning_again_changes_nothing_and_another_digest_replaces_it(file: Path) -> None:
    assert pin(file, {"digest": DIGEST})
    once = file.read_text()
    assert not pin(file, {"digest": DIGEST})
    assert file.read_text() == once
    assert pin(file, {"digest": OTHER})
    assert file.read_text() == once.replace(DIGEST, OTHER)


@pytest.mark.parametrize(
    "section",
    [
        "image:\n  tag: '7'   # mine\n  size_gib: 20\n",
        "image:\n    tag: '7'\n    digest: null   # not yet\n    size_gib: 20\n",
        "image: {tag: '7', size_gib: 20}\n",
        "image:\n  # nothing but\n  tag: '7'\n  size_gib: 20",
    ],
)
def test_a_section_that_is_there_is_kept(tmp_path: Path, section: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((ENVIRONMENTS / "reference.yaml").read_text() + section)
    assert pin(path, {"digest": DIGEST})
    image = load(str(path)).image
    assert (image.tag, image.size_gib, image.digest) == ("7", 20, DIGEST)
    assert all(word in path.read_text() for word in ("# mine",) if word in section)


@pytest.mark.parametrize("extra", ["image: null\n", "image: {}\n", "x: &image {tag: '7'}\n"])
def test_what_cannot_be_changed_safely_is_left_alone_with_the_lines_to_write(tmp_path: Path, extra: str) -> None:
    path = tmp_path / "mine.yaml"
    text = (ENVIRONMENTS / "reference.yaml").read_text() + extra
    path.write_text(text)
    with pytest.raises(NotPinned, match=f"image:\n  digest: {DIGEST}"):
        pin(path, {"digest": DIGEST})
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((ENVIRONMENTS / "reference.yaml").read_text())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(NotPinned, match="Permission denied"):
        pin(path, {"digest": DIGEST})
    assert parse(path.read_text()).image.digest is None


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text((ENVIRONMENTS / "reference.yaml").read_text())
    link = tmp_path / "link.yaml"
    link.symlink_to(real)
    assert pin(link, {"digest": DIGEST})
    assert link.is_symlink()
    assert load(str(real)).image.digest == DIGEST
