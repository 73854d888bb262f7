"""The style sheet of the HTML report: calm, printable, contrast of 4.5 and more."""

CSS = """\
:root { color-scheme: light; --ink: #1c2430; --soft: #55606e; --line: #d5dae1; --paper: #fff;
  --bad: #a3261d; --warn: #8a5a00; --good: #1d6b3a; --blue: #1f5fa8; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
header { border-left: 6px solid var(--soft); padding: .2rem 0 .2rem 1rem; }
header.stuck, header.failed { border-color: var(--bad); }
header.slow { border-color: #c98a1b; }
header.healthy { border-color: var(--good); }
header p { margin: .2rem 0; color: var(--soft); }
.symptom { font-weight: 700; letter-spacing: .08em; }
.stuck .symptom, .failed .symptom { color: var(--bad); }
.slow .symptom { color: var(--warn); }
.healthy .symptom { color: var(--good); }
h1 { font-size: 1.55rem; line-height: 1.3; margin: .1rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.3rem 0 .4rem; overflow-wrap: anywhere; }
h4 { font-size: .95rem; margin: .9rem 0 .3rem; color: var(--soft); }
p, li, dd { overflow-wrap: anywhere; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 1rem 0; font-size: .92rem; }
a { color: var(--blue); }
.lead { font-size: 1.08rem; }
.note { color: var(--soft); font-size: .92rem; }
.alarm { border-left: 4px solid var(--bad); padding: .3rem .8rem; background: #fbf1f0; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .6rem 1.5rem;
  margin: .6rem 0; }
dt { color: var(--soft); font-size: .86rem; }
dd { margin: 0; }
.strip { display: flex; list-style: none; margin: 1rem 0 1.4rem; padding: 0; }
.strip li { flex: 1 1 0; min-width: 0; border-top: 3px solid var(--line); padding: .5rem .7rem 0 0;
  position: relative; font-size: .9rem; }
.strip li::before { content: ""; position: absolute; top: -.5rem; left: 0; width: .8rem;
  height: .8rem; border-radius: 50%; background: var(--soft); border: 2px solid var(--paper); }
.strip li.good::before { background: var(--good); }
.strip li.bad::before { background: var(--bad); }
.strip li.bad { border-top-color: var(--bad); }
.strip li:last-child { border-color: transparent; }
.strip span { display: block; }
.strip .what { font-weight: 600; }
.strip .bad .what { color: var(--bad); }
.strip .when { color: var(--soft); font-size: .86rem; font-variant-numeric: tabular-nums; }
.scroll, .picture { overflow-x: auto; background:
  linear-gradient(to right, var(--paper) 1.5rem, transparent 3rem) left / 3rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 1.5rem, transparent 3rem) right / 3rem 100% no-repeat local,
  linear-gradient(to right, #c3c9d1, transparent) left / .6rem 100% no-repeat scroll,
  linear-gradient(to left, #c3c9d1, transparent) right / .6rem 100% no-repeat scroll; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .5rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; min-width: 5.6rem; }
th { color: var(--soft); font-weight: 600; overflow-wrap: normal; }
th:first-child, td:first-child { min-width: 2.8rem; }
th.number, td.number { min-width: 0; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr:target { background: #fff6d6; }
pre { background: #f6f7f9; border: 1px solid var(--line); padding: .7rem; overflow-x: auto;
  font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", monospace; background: #f1f3f6;
  padding: 0 .2em; }
.add { color: #135d2e; background: #e9f6ee; }
.del { color: #8f1d15; background: #fceceb; }
.hunk { color: var(--soft); }
figure { margin: 1rem 0; }
figcaption { font-weight: 600; font-size: .95rem; }
.picture svg { width: 100%; min-width: 34rem; height: auto; display: block; }
footer { margin-top: 2.5rem; padding-top: .6rem; border-top: 1px solid var(--line);
  color: var(--soft); font-size: .86rem; }
@media (max-width: 40rem) { body { padding: .8rem; font-size: 15px; }
  .strip { display: block; }
  .strip li { border-top: 0; border-left: 3px solid var(--line); padding: 0 0 .8rem 1rem; }
  .strip li.bad { border-left-color: var(--bad); }
  .strip li::before { top: .2rem; left: calc(-.4rem - 1.5px); }
  .strip .when { display: inline; margin-right: .8rem; } }
@media print { @page { margin: 14mm; } body { font-size: 10.5pt; max-width: none; padding: 0; }
  nav { display: none; } h2 { margin-top: 1rem; } section, figure, tr { break-inside: auto; }
  figure, tr, dl > div { break-inside: avoid; } .picture svg { min-width: 0; }
  h2, h3 { break-after: avoid; }
  a { color: inherit; text-decoration: none; } }
"""
