"""Write the dashboards in deploy/grafana. Run: python -m scripts.make_dashboards"""

from __future__ import annotations

import json
from pathlib import Path

from scripts.dashboards.handoff import handoff
from scripts.dashboards.overview import overview
from scripts.dashboards.workers import workers

FOLDER = Path(__file__).parent.parent / "deploy" / "grafana"


def render() -> dict[Path, str]:
    """What each file should hold."""
    boards = (overview(), handoff(), workers())
    return {
        FOLDER / f"{board['uid']}.json": json.dumps(board, indent=2, ensure_ascii=False) + "\n"
        for board in boards
    }


if __name__ == "__main__":
    for path, text in render().items():
        path.write_text(text)
