"""The report: one page that carries everything itself, says the record's numbers, and can be made after the cluster is gone."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli import main
from config.load import load
from config.problems import Unreachable
from tests.training import run_folder
from tests.training.fakes import FakeRay, connection
from training import jobs, keeping, layout, record, series
from training.report import charts, page
from training.report.charts import Chart, Curve, Point


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(layout.SHARED_VARIABLE, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ray(shared: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """Two runs, maze-1 with a failed attempt and a resumed one, maze-2 at another learning rate."""
    fake = FakeRay()
    run_folder.attempt(fake, run_folder.log(range(11)), status="FAILED", message="a node went <away> & died")
    run_folder.attempt(fake, run_folder.log(range(9, 13), resumed_at=8))
    run_folder.attempt(fake, run_folder.log(range(6)), run_id="maze-2", settings=("trainer.policy.optimizer_config.lr=1.0e-6",))
    for step, solved in ((0, 28), (4, 30), (8, 40), (12, 45)):
        run_folder.dump(shared / "runs" / "maze-1", step, range(solved))
    run_folder.checkpoint(shared / "runs" / "maze-1", 12)

    @contextlib.contextmanager
    def connect(env: Any, **_: Any) -> Any:
        yield connection(fake, env)

    monkeypatch.setattr(jobs, "connect", connect)
    return fake


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main.run(words)
    out, err = capsys.readouterr()
    return code, out, err


class Document(HTMLParser):
    """What a browser would load from elsewhere or run, and whether every element is closed."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "action", "srcset", "data") or name.startswith("on"):
                self.addresses.append(f"{name}={value}")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("runs", [["maze-1"], ["maze-1", "maze-2"]], ids=len)
def test_one_page_that_needs_nothing_else(runs: list[str], ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(["report", *runs, "--output", "page.html"], capsys)
    assert code == 0, err
    assert "written: page.html" in out
    text = (shared / "page.html").read_text()
    document = Document(text)
    assert document.addresses == ["href=data:,"]
    assert not document.tags & {"script", "img", "iframe", "object", "embed"}
    assert "url(" not in text
    assert "@import" not in text
    assert len(document.ids) == len(set(document.ids))
    for svg in re.findall(r"<svg .*?</svg>", text):
        ET.fromstring(svg)
    assert "a node went <away> & died" in "".join(document.text)
    assert {"title", "main", "h1", "h2", "table", "svg"} <= document.tags
    assert [path.name for path in shared.iterdir() if path.name.startswith(".")] == []


def test_the_default_name_and_the_json(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(["report", "maze-1", "maze-2", "--json"], capsys)
    document = json.loads(out)
    assert (code, document["output"]) == (0, "report-maze-1-maze-2.html")
    assert (shared / "report-maze-1-maze-2.html").is_file()
    assert [each["run_id"] for each in document["runs"]] == ["maze-1", "maze-2"]
    assert document["runs"][0] == json.loads((shared / "runs/maze-1" / record.FILE).read_text())


def test_the_same_runs_give_the_same_bytes(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pages = set()
    for _ in range(2):
        call(["report", "maze-1", "--output", "page.html"], capsys)
        call(["report", "maze-1", "--output", "again.html", "--offline"], capsys)
        pages.add((shared / "page.html").read_bytes())
    assert pages == {(shared / "page.html").read_bytes()}
    assert (shared / "again.html").read_text() == (shared / "page.html").read_text().replace("From: Ray cluster.", "From: saved copy.")


def test_after_the_cluster_is_gone(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    call(["report", "maze-1"], capsys)
    kept = json.loads((shared / "runs/maze-1" / record.FILE).read_text())

    def gone(*_: Any, **__: Any) -> Any:
        raise Unreachable("there is no such cluster")

    monkeypatch.setattr(jobs, "connect", gone)
    code, out, err = call(["report", "maze-1", "--output", "later.html"], capsys)
    assert code == 0
    assert "no such cluster; going by what was kept" in err
    assert "13 steps, 4 evaluations, from saved copy" in out
    assert json.loads((shared / "runs/maze-1" / record.FILE).read_text()) == kept
    code, _, err = call(["report", "maze-2"], capsys)
    assert code == 3
    assert "nothing was kept of run maze-2" in err
    assert not (shared / "report-maze-2.html").exists()


@pytest.mark.parametrize("words", [["nope"], ["nope", "--offline"]], ids=" ".join)
def test_runs_that_nobody_knows(words: list[str], ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(["report", "maze-1", "nada", *words], capsys)
    assert (code, out) == (2, "")
    assert "run = nada" in err
    assert "run = nope" in err
    assert not list(shared.glob("*.html"))


def test_a_run_with_no_step_yet(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder.attempt(ray, "Running entrypoint\n", run_id="maze-3", status="RUNNING")
    code, out, _ = call(["report", "maze-3"], capsys)
    assert code == 0
    assert "0 steps" in out
    assert "No step has told a solve rate yet." in (shared / "report-maze-3.html").read_text()


def test_a_missing_stretch_of_steps_is_said(shared: Path) -> None:
    ray = FakeRay()
    run_folder.attempt(ray, run_folder.log([*range(4), *range(9, 11)]))
    history = keeping.history(load("reference"), "maze-1", connection=connection(ray))
    assert history is not None
    assert "No log tells of step 4 to 8." in page([history])


def test_what_differs_between_runs_and_what_follows_from_their_names_only(
    ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(["report", "maze-1", "maze-2", "--output", "page.html"], capsys)
    text = (shared / "page.html").read_text()
    differs = text[text.index("What differs") : text.index("<details>")]
    assert re.findall(r'<th scope="row"><code>(.*?)</code>', differs) == ["trainer.policy.optimizer_config.lr"]


def test_a_page_that_cannot_be_written(ray: FakeRay, shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(["report", "maze-1", "--output", "no/such/folder/page.html"], capsys)
    assert code == 2  # before anything is gathered
    assert "there is no such folder; make no/such/folder first" in err


# --- charts ---

numbers = st.floats(-1e9, 1e9, allow_nan=False)


@settings(max_examples=200, deadline=None)
@given(numbers, numbers)
def test_ticks_are_few_and_cover_the_range(a: float, b: float) -> None:
    low, high = sorted((a, b))
    got = charts.ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-12)
    assert 2 <= len(got) <= 9
    assert got[0] <= low + slack
    assert got[-1] >= high - slack


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), numbers), min_size=1, max_size=200), st.text(max_size=20))
def test_any_curve_is_drawn_inside_its_frame(values: list[tuple[int, float]], label: str) -> None:
    label = "".join(character for character in label if character.isprintable())
    points = [Point(step, value) for step, value in sorted(dict(values).items())]
    root = ET.fromstring(charts.draw(Chart("x", "Reward", "mean", [Curve(label, points, [(points[0].step, 2)])])))
    for circle in root.iter("circle"):
        assert charts.LEFT - 0.2 <= float(circle.get("cx", "")) <= charts.WIDTH - charts.RIGHT + 0.2
        assert charts.TOP - 0.2 <= float(circle.get("cy", "")) <= charts.HEIGHT - charts.BOTTOM + 0.2
    lines = [line.get("points", "").split() for line in root.iter("polyline")]
    assert [len(line) for line in lines] == ([len(points)] if len(points) > 1 else [])


def test_the_curve_of_the_page_has_each_step_once(ray: FakeRay, shared: Path) -> None:
    history = keeping.history(load("reference"), "maze-1", connection=connection(ray))
    assert history is not None
    text = page([history])
    reward = next(svg for svg in re.findall(r"<svg .*?</svg>", text) if ">Reward<" in svg)
    (line,) = ET.fromstring(reward).iter("polyline")
    places = [float(point.split(",")[0]) for point in line.get("points", "").split()]
    assert len(places) == 12  # steps 1 to 12; step 0 is only an evaluation
    gaps = [after - before for before, after in itertools.pairwise(places)]
    assert max(gaps) - min(gaps) < 0.21
    assert ">a2<" in reward
    assert [row.step for row in series.joined(history.series)] == list(range(13))
