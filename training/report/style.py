"""The page's style sheet: light and dark as the reader's system says, one column where the window is narrow."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #57606a; --rule: #d8dde3; --good: #116329; --bad: #a40e26;
  --good-back: #dff3e4; --bad-back: #fbe3e4; --shade: rgba(27, 31, 36, .3);
  --c0: #1f5fbf; --c1: #b93d08; --c2: #0f766e; --c3: #8527d6; --c4: #8a5a00; --c5: #b5185a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0e1116; --card: #171b22; --ink: #e6e9ee; --soft: #9aa4b1; --rule: #323945; --good: #6fdc8c; --bad: #ff9a9a;
    --good-back: #12331d; --bad-back: #3f171b; --shade: rgba(230, 233, 238, .38);
    --c0: #7ab0ff; --c1: #ff9d6b; --c2: #4fd1c0; --c3: #c9a0ff; --c4: #e8c25a; --c5: #ff8fc0;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 20px 16px 48px; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.12rem; margin: 30px 0 10px; overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 20px 0 8px; }
p { margin: 6px 0; }
.lead, .none, figcaption, .hint { color: var(--soft); }
.lead, dt, dd, td.text { overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px; min-width: 0; }
.tiles { display: grid; gap: 10px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 160px), 1fr)); margin: 16px 0 0; }
.tiles .card { margin: 0; }
.tiles dt { color: var(--soft); font-size: .85rem; }
.tiles dd { margin: 0; font-size: 1.3rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.tiles dd small { display: block; font-size: .82rem; font-weight: 400; color: var(--soft); }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 320px), 1fr)); }
figure { margin: 0; }
figure h3 { margin: 0 0 6px; }
figcaption { font-size: .85rem; margin-top: 6px; }
svg.chart { display: block; width: 100%; height: auto; }
svg.chart text { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--rule); stroke-width: .7; }
.axis, .tick { stroke: var(--soft); stroke-width: 1; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); }
.c3 { --c: var(--c3); } .c4 { --c: var(--c4); } .c5 { --c: var(--c5); }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.band { fill: var(--c); opacity: .13; }
.whisker { stroke: var(--c); stroke-width: 1.2; opacity: .6; }
.dot { fill: var(--c); stroke: var(--card); stroke-width: .6; }
.bound { stroke: var(--ink); stroke-width: 1.4; }
.many .bound { stroke: var(--c); }
.baseline { stroke: var(--c); stroke-width: 1.6; }
.many .all .bound { stroke: var(--ink); }
.all .baseline, .key .baseline { stroke: var(--soft); }
.cut { stroke: var(--soft); stroke-width: 1; }
.mark { fill: var(--c); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 8px 0 0; padding: 0; font-size: .85rem; }
.legend li { overflow-wrap: anywhere; }
.key { vertical-align: middle; margin-right: 6px; }
.scroll {
  /* A shade at each edge behind which there is more: the two that go with the table cover the two that stay where it ends. */
  overflow-x: auto; background-color: var(--card); background-repeat: no-repeat;
  background-image: linear-gradient(to right, var(--card) 45%, transparent), linear-gradient(to left, var(--card) 45%, transparent),
    linear-gradient(to right, var(--shade), transparent), linear-gradient(to left, var(--shade), transparent);
  background-position: left, right, left, right; background-size: 36px 100%, 36px 100%, 14px 100%, 14px 100%;
  background-attachment: local, local, scroll, scroll;
}
.narrow { display: none; }
.scroll:focus-visible, summary:focus-visible { outline: 2px solid var(--c0); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
.hint { margin: 0 0 6px; font-size: .85rem; }
figure h3 span { color: var(--soft); font-weight: 400; font-size: .85rem; }
th, td { text-align: right; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child, th.text, td.text { text-align: left; }
td.text { white-space: normal; min-width: 11rem; }
tbody th { white-space: normal; overflow-wrap: anywhere; min-width: min(8rem, 26vw); max-width: 42vw; }
thead th { color: var(--soft); font-weight: 600; }
tbody th { font-weight: 600; }
.mazes th, .mazes td { text-align: center; padding: 2px 6px; }
.mazes th:first-child, .runs th:first-child { position: sticky; left: 0; background: var(--card); text-align: left; }
.yes { background: var(--good-back); color: var(--good); }
.no { color: var(--soft); }
.cutoff { background: var(--bad-back); color: var(--bad); }
.good { color: var(--good); } .bad { color: var(--bad); }
dl.facts { display: grid; grid-template-columns: fit-content(40%) minmax(0, 1fr); gap: 4px 14px; margin: 0; }
dl.facts dt { color: var(--soft); }
dl.facts dd { margin: 0; }
details { margin-top: 12px; }
summary { cursor: pointer; font-weight: 600; padding: 4px 0; overflow-wrap: anywhere; }
pre { margin: 8px 0 0; white-space: pre-wrap; overflow-wrap: anywhere; }
pre, code { font: 12px/1.45 ui-monospace, "SFMono-Regular", Menlo, Consolas, monospace; }
@media (max-width: 900px) { .narrow { display: block; } }
@media (max-width: 480px) {
  dl.facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  dl.facts dd { margin-bottom: 8px; }
}
@media print { body { background: none; } .card { break-inside: avoid; } }
"""
