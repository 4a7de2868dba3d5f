"""Puts what was measured on docs/scaling.md, between two marks."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"


def put(name: str, text: str, page: Path = PAGE) -> None:
    """What is between `<!-- name -->` and `<!-- end of name -->` becomes the text."""
    before, _, rest = page.read_text().partition(f"<!-- {name} -->")
    _, mark, after = rest.partition(f"<!-- end of {name} -->")
    if not mark:
        raise ValueError(f"{page.name} has no marks <!-- {name} --> and <!-- end of {name} -->.")
    page.write_text(f"{before}<!-- {name} -->\n\n{text}\n\n{mark}{after}")
    print(text)
