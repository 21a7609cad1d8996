"""The report in a real browser: its numbers, its console, a narrow window, the dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import struct
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from config.load import load
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from training import keeping, layout, record
from training.report import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here: apt-get install chromium"),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr",
)  # fmt: skip
# A window of headless chromium is 500 pixels wide at least, so the page is shown in a frame. What is measured there is written
# into the outer document, from where --dump-dom brings it here.
MEASURE = """<!doctype html><meta charset="utf-8"><iframe width="%d" height="800" style="border:0" srcdoc="%s"></iframe><script>
const luminance = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const channels = text => text.match(/[\\d.]+/g).map(Number);
const measure = frame => {
  const page = frame.contentWindow, all = page.document;
  const background = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = channels(page.getComputedStyle(e).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  let worst = [99, ""];
  for (const element of all.querySelectorAll("h1,h2,h3,p,td,th,dt,dd,summary,figcaption,li,svg text,small,code,pre,span,strong")) {
    const style = page.getComputedStyle(element);
    const color = channels(element.tagName === "text" ? style.fill : style.color);
    const [a, b] = [luminance(color), luminance(background(element))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (contrast < worst[0]) worst = [contrast, element.tagName + " " + element.textContent.slice(0, 40)];
  }
  return {
    inner: page.innerWidth, scroll: all.documentElement.scrollWidth, dark: page.matchMedia("(prefers-color-scheme: dark)").matches,
    contrast: worst[0], where: worst[1], page: page.getComputedStyle(all.body).backgroundColor,
    chartText: all.querySelector("svg.chart text").getBoundingClientRect().height,
    wide: [...all.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth).map(box =>
      [box.getAttribute("aria-label"), page.getComputedStyle(box).backgroundAttachment]),
    hints: [...all.querySelectorAll(".narrow")].map(hint => hint.getBoundingClientRect().height > 0),
  };
};
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => document.body.setAttribute("data-measured", JSON.stringify(measure(frame))));
</script>"""


def browse(tmp_path: Path, text: str, *flags: str, width: int = 1200) -> tuple[str, list[str]]:
    """Load a page; returns its document afterwards, and what it wrote to the console."""
    assert CHROMIUM is not None
    profile = tmp_path / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    file = tmp_path / "page.html"
    file.write_text(text, encoding="utf-8")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},900", *flags, file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def measured(tmp_path: Path, text: str, *flags: str, width: int) -> dict[str, Any]:
    """The page's layout in a window of this width, with all unfolded that can be."""
    text = text.replace("<details>", "<details open>")
    dom, console = browse(tmp_path, MEASURE % (width, html.escape(text)), "--dump-dom", *flags)
    match = re.search(r'data-measured="([^"]*)"', dom)
    assert match is not None, console
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found


class Tables(HTMLParser):
    """Rows of every table by its label: exact values of the numbers in a cell, else its text; and what stands in `pre`."""

    def __init__(self, dom: str) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[Any]]]] = {}
        self.rounded: list[tuple[Any, str]] = []
        self.pre: list[str] = []
        self._rows: list[list[list[Any]]] = []
        self._inside: list[str] = []
        self.feed(dom)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self._inside.append(tag)
        if tag == "table":
            self._rows = self.tables.setdefault(told.get("aria-label") or "", [])
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th") and self._rows:
            self._rows[-1].append([])
        elif tag == "data":
            self.rounded.append((json.loads(told["value"] or ""), ""))
            if self._rows and self._rows[-1] and ("td" in self._inside or "th" in self._inside):
                self._rows[-1][-1].append(json.loads(told["value"] or ""))
        elif tag == "pre":
            self.pre.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        inside = self._inside[-1] if self._inside else ""
        if inside == "data":
            self.rounded[-1] = (self.rounded[-1][0], data)
        elif inside == "pre":
            self.pre[-1] += data
        elif self._rows and self._rows[-1] and self._rows[-1][-1] is not None and ("td" in self._inside or "th" in self._inside):
            self._rows[-1][-1].append(data)


@pytest.fixture
def histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[keeping.History]:
    """Two runs with evaluations, a failure, and names and reasons as long as they get."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(shared))
    env, found = load("reference"), []
    for run_id, best in (("maze-1", 45), ("a-run-whose-name-is-as-long-as-the-rule-allows-1", 35)):
        ray = FakeRay()
        reason = "Job entrypoint command failed with exit code 1; its log ends with: " + "unbreakable_word_" * 12
        run_folder.attempt(ray, run_folder.log(range(47), evaluate_every=10), run_id=run_id, status="FAILED", message=reason)
        run_folder.attempt(ray, run_folder.log(range(41, 101), resumed_at=40, evaluate_every=10), run_id=run_id)
        for step in range(0, 101, 10):
            run_folder.dump(shared / "runs" / run_id, step, range(20 + (best - 20) * step // 100))
        run_folder.checkpoint(shared / "runs" / run_id, 100)
        link = connection(ray, env)
        keeping.history(env, run_id, connection=link)
        keeping.Keeper(link, run_id).refresh(record.event("recovery", "attempt 1 failed at step 46", attempt=1))
        history = keeping.history(env, run_id, connection=link)
        assert history is not None
        found.append(history)
    return found


def test_every_number_is_the_records(histories: list[keeping.History], tmp_path: Path) -> None:
    history = histories[0]
    dom, console = browse(tmp_path, page([history]), "--dump-dom")
    assert console == []
    told = history.record.model_dump(mode="json")
    tables = Tables(dom)
    assert json.loads(tables.pre[0]) == told
    shown = tables.tables["Evaluations"][1:]
    assert len(shown) == len(told["evaluations"]) == 11
    for row, each in zip(shown, told["evaluations"], strict=True):
        assert (row[0], row[1]) == ([each["step"]], [each["rate"]])
        assert [value for value in row[2] if isinstance(value, float)] == [each["low"], each["high"]]
        assert [value for value in row[3] if isinstance(value, int)] == [each["solved"], each["mazes"]]
        assert row[4] == [each["rate"] / each["oracle_bound"]]
        assert (row[5], row[6], row[7]) == ([each["attempt"]], [each["source"]], [each["skyrl_pass_at_1"]])
    attempts = tables.tables["Attempts"][1:]
    assert [row[0] for row in attempts] == [[each["number"]] for each in told["attempts"]]
    assert [[v for v in row[4] if isinstance(v, int)] for row in attempts] == [[a["first_step"], a["last_step"]] for a in told["attempts"]]
    assert attempts[0][7] == [told["attempts"][0]["reason"]]
    mazes = tables.tables["Maze by maze"]
    for column, each in enumerate(told["evaluations"], 1):
        assert mazes[-1][column] == [sum(maze["solved"] for maze in each["results"])]
        assert [row[column] == ["✓"] for row in mazes[1:-1]] == [maze["solved"] for maze in each["results"]]
    steps = tables.tables["Every step"][1:]
    assert [row[0] for row in steps] == [[number] for number in range(101)]
    assert [row[2] for row in steps[1:]] == [[row.reward] for row in history.series[1:]]
    for value, text in tables.rounded:
        digits = len(text.partition(".")[2])
        assert abs(float(text.replace(",", "")) - value) <= 0.5 * 10**-digits + 1e-12, (value, text)


def test_the_console_is_heard(tmp_path: Path) -> None:
    _, console = browse(tmp_path, "<script>undefinedFunction()</script>", "--dump-dom")
    assert any("undefinedFunction" in line for line in console)


@pytest.mark.parametrize("runs", [1, 2])
def test_the_console_stays_empty(runs: int, histories: list[keeping.History], tmp_path: Path) -> None:
    assert browse(tmp_path, page(histories[:runs]), "--dump-dom")[1] == []


@pytest.mark.parametrize("runs", [1, 2])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_readable_in_a_narrow_window_in_light_and_in_the_dark(
    runs: int, dark: bool, histories: list[keeping.History], tmp_path: Path
) -> None:
    flags = ("--force-dark-mode",) if dark else ()
    got = measured(tmp_path, page(histories[:runs]), *flags, width=400)
    assert got["inner"] == 400
    assert got["scroll"] <= 400
    assert got["dark"] is dark
    assert (sum(map(int, re.findall(r"\d+", got["page"]))) < 150) is dark
    # Text of normal size needs 4.5 to 1 (WCAG 2.2, 1.4.3).
    assert got["contrast"] >= 4.5, got["where"]
    assert got["chartText"] >= 10  # pixels
    # Whatever goes on beyond the edge shows so: a shade that stays there until the end is reached.
    assert all(attachment == "local, local, scroll, scroll" for _, attachment in got["wide"])
    assert {"Attempts", "Comparison"} & {name for name, _ in got["wide"]}
    assert got["hints"] == [True] * (runs - 1)


def test_an_overflow_would_be_seen(histories: list[keeping.History], tmp_path: Path) -> None:
    text = page(histories[:1]).replace("<main>", "<main><p style='width:900px'>wide</p>")
    assert measured(tmp_path, text, width=400)["scroll"] > 400


def test_a_picture_of_it(histories: list[keeping.History], tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    browse(tmp_path, page(histories), f"--screenshot={picture}", width=400)
    data = picture.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (400, 900)
    assert len(data) > 10_000  # an empty page of this size has about 3 kB
