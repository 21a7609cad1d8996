"""The page of an environment's keys says what the model says."""

from __future__ import annotations

from tools import environment_page


def test_the_page_is_the_models() -> None:
    assert environment_page.PAGE.read_text(encoding="utf-8") == environment_page.page(), f"run `{environment_page.COMMAND}`"


def test_every_key_has_its_row_with_what_it_takes() -> None:
    page = environment_page.page()
    assert '| `removal` | `destroy`, `backup`, `retain` | `"retain"` |' in page
    assert "| `capacity_gib` | integer, at least 1200 | `1200` |" in page
    assert "## access.training_users[]" in page
    assert "| `role_arn` |" in page
    assert "**needed**" in page
