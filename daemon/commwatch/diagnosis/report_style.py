"""How the report looks: light and dark, on a phone, and printed; the colours are those of the node's page."""

from __future__ import annotations

from commwatch.views.node_page.style import DARK, LIGHT

_MORE_LIGHT = "--warn:#8a5a00;--warnbg:#fff4ce;--badbg:#ffebe9;--goodbg:#e6f4ea"
_MORE_DARK = "--warn:#e3b341;--warnbg:#33280b;--badbg:#3a1618;--goodbg:#12281a"

STYLE = (
    f":root{{{LIGHT};{_MORE_LIGHT}}}@media screen and (prefers-color-scheme:dark){{:root{{{DARK};{_MORE_DARK}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1rem;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
h1{font-size:1.25rem;margin:0}
h2{font-size:1.1rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:1.2rem 0 .3rem}
p{margin:.3rem 0}
.dim{color:var(--dim)}
.notice{background:var(--note);color:var(--notefg);border-radius:6px;padding:.6rem .8rem;margin:0 0 1rem;
font-weight:600}
.simulated{background:var(--fg);color:var(--bg)}
.verdict{border-left:6px solid var(--side);background:var(--ground);border-radius:6px;padding:.8rem 1rem;margin:1rem 0;
font-size:1.1rem}
.verdict strong{color:var(--side)}
.good{--side:var(--good);--ground:var(--goodbg)}
.warn{--side:var(--warn);--ground:var(--warnbg)}
.bad{--side:var(--bad);--ground:var(--badbg)}
.plain{--side:var(--dim);--ground:var(--card)}
.tag{display:inline-block;color:var(--side);background:var(--ground);border:1px solid var(--side);border-radius:4px;
padding:0 .4rem;font-size:.8rem;font-weight:600;white-space:nowrap}
article{border:1px solid var(--line);border-left:4px solid var(--side);border-radius:6px;padding:.7rem 1rem;
margin:.7rem 0;break-inside:avoid}
article h3{margin:0}
article ul,article ol{margin:.3rem 0;padding-left:1.4rem}
.next{margin-top:.5rem;padding-top:.5rem;border-top:1px solid var(--line)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.5rem 0}
dt{color:var(--dim)}
dd{margin:0}
table{overflow-wrap:break-word;border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.93rem}
th,td{padding:.35rem .6rem;text-align:left;vertical-align:top}
thead th{background:var(--card);font-weight:600;color:var(--dim);font-size:.85rem}
tbody tr+tr td,tbody tr+tr th{border-top:1px solid var(--line)}
tbody.branch th{font-weight:600;padding-top:.8rem}
.number{text-align:right}
.verdictcell{color:var(--side);font-weight:600;white-space:nowrap}
.checks th:nth-child(2){width:31%}
.checks th:nth-child(3){width:18%}
.checks th:nth-child(n+4){width:20%}
.framed{border:1px solid var(--line);border-radius:6px;overflow-x:auto}
.pairs{display:flex;flex-wrap:wrap;gap:.5rem 2rem}
.pairs div{flex:1 1 27rem;min-width:0;overflow-x:auto}
.pairs svg{max-width:100%;height:auto}
.bar{display:inline-block;width:6rem;height:.6rem;border-radius:3px;background:var(--line);vertical-align:middle}
.bar span{display:block;height:100%;border-radius:3px;background:var(--link)}
details{margin:.6rem 0}
summary{cursor:pointer;color:var(--link)}
footer{margin:2.5rem 0 1rem;padding-top:.6rem;border-top:1px solid var(--line);font-size:.85rem;color:var(--dim)}
@media (max-width:40rem){
body{padding:.7rem}
.stacked thead{display:none}
.stacked tr,.stacked td,.stacked th{display:block;border:0!important}
.stacked tr{padding:.4rem 0;border-top:1px solid var(--line)!important}
.stacked td,.stacked th{padding:.05rem .6rem;text-align:left}
.stacked td[data-label]::before{content:attr(data-label) ": ";color:var(--dim)}
.stacked td:empty{display:none}
}
@media print{
body{max-width:none;padding:0;font-size:10pt}
.bar,.bar span,.tag,.verdict,.notice{-webkit-print-color-adjust:exact;print-color-adjust:exact}
h2,h3{break-after:avoid}
tr,svg{break-inside:avoid}
summary{display:none}
}
"""
)
