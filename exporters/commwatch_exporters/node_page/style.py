"""How the node's page looks: light and dark, from the phone to the wide screen; every text has a contrast of 4.5."""

from __future__ import annotations

from typing import Final

LIGHT: Final = """color-scheme:light;--bg:#fff;--fg:#1b1f24;--dim:#59636e;--line:#d8dee4;--card:#f6f8fa;
--good:#1a7f37;--bad:#c21c2b;--note:#fff4ce;--notefg:#5c4400;--link:#0757ba"""
DARK: Final = """color-scheme:dark;--bg:#0f1318;--fg:#e6edf3;--dim:#9aa5b1;--line:#2f3742;--card:#171c23;
--good:#4cc46b;--bad:#ff7b72;--note:#3a2f0b;--notefg:#f2dc9b;--link:#6cb2ff"""
"""Colours of all pages, as CSS properties of ``:root``."""

_MORE_LIGHT = """--warn:#8a5a00;--badbg:#fff0ee;--warnbg:#fff8e5;--goodbg:#edf8f0;--wire:#7d8fa3;
--use:#0757ba;--use1:#7e9cc4;--use2:#5886c0;--use3:#2f6fbd"""
_MORE_DARK = """--warn:#e3b341;--badbg:#2a1416;--warnbg:#282009;--goodbg:#0f2216;--wire:#64748b;
--use:#7cbcff;--use1:#4b6c92;--use2:#5481b3;--use3:#6098d6"""

STYLE: Final = (
    f":root{{{LIGHT};{_MORE_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK};{_MORE_DARK}}}}}"
    """
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem 1.25rem;background:var(--bg);color:var(--fg);
font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
a{color:var(--link)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px;border-radius:3px}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:.2rem .8rem}
nav{margin-left:auto;display:flex;flex-wrap:wrap;gap:.2rem 1rem}
h1{font-size:1.35rem;margin:0}
h2{font-size:1.05rem;margin:1.8rem 0 .5rem}
h3{font-size:1rem;margin:0}
p{margin:.3rem 0}
section{min-width:0}
.dim{color:var(--dim)}
.small,.legend,footer{font-size:.85rem}
.unseen{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.notice{background:var(--note);color:var(--notefg);border-radius:6px;padding:.5rem .8rem;margin:.7rem 0 0}
.good{--side:var(--good);--ground:var(--goodbg)}
.warn{--side:var(--warn);--ground:var(--warnbg)}
.bad{--side:var(--bad);--ground:var(--badbg)}
.info,.plain{--side:var(--dim);--ground:var(--card)}
#verdict{margin:0;height:0}
.verdict{display:flex;flex-wrap:wrap;justify-content:space-between;align-items:center;gap:.8rem 2.5rem;
background:var(--ground);border:1px solid var(--line);border-left:6px solid var(--side);border-radius:8px;
padding:.8rem 1.1rem;margin-top:.8rem}
.state{display:flex;align-items:center;gap:.8rem;margin:0}
.state strong{display:block;font-size:1.5rem;line-height:1.2;color:var(--side)}
.places{display:block;font-weight:600}
.sign{flex:none;display:grid;place-items:center;width:2.6rem;height:2.6rem;border-radius:50%;background:var(--side);
color:var(--bg);font-size:1.5rem;font-weight:700}
.score p{margin:0;color:var(--dim)}
.score strong{font-size:1.5rem;line-height:1.2;color:var(--fg);margin-left:.4rem;font-variant-numeric:tabular-nums}
.score dl{display:grid;grid-template-columns:repeat(4,minmax(4.4rem,6.5rem));gap:0 1rem;margin:.3rem 0 0}
.score dt{color:var(--dim);font-size:.8rem}
.score dd{margin:0;font-variant-numeric:tabular-nums}
.bar{display:block;height:4px;border-radius:2px;background:var(--line)}
.bar i{display:block;height:100%;border-radius:2px;background:var(--fg)}
.score .lost{font-size:.85rem;color:var(--dim);margin:.3rem 0 0;max-width:32rem}
.score ul.lost{padding-left:1.1rem;margin:0}
.facts{display:flex;flex-wrap:wrap;gap:.2rem 2rem;margin:.8rem 0 0}
.facts dt{color:var(--dim);font-size:.8rem}
.facts dd{margin:0}
.facts .bad{color:var(--side);font-weight:600}
article{border:1px solid var(--line);border-left:4px solid var(--side);border-radius:6px;padding:.55rem .9rem;
margin:.5rem 0}
article p{margin:.1rem 0}
article ul{margin:0;padding-left:1.2rem}
article li{line-height:1.35}
.where{color:var(--dim)}
@media(min-width:60rem){article{display:grid;grid-template-columns:1fr 1fr;gap:0 2rem}article .next{align-self:center}}
.tag{display:inline-block;color:var(--side);background:var(--ground);border:1px solid var(--side);border-radius:4px;
padding:0 .4rem;font-size:.8rem;white-space:nowrap;margin-right:.3rem}
.two th,.two td{padding-inline:.5rem}
.two>div{min-width:0}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,31rem),1fr));gap:0 2.5rem}
.two:has(>:only-child){display:block}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:6px}
.bare{border:0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .7rem;text-align:left;white-space:nowrap}
thead th{background:var(--card);font-weight:600;color:var(--dim);font-size:.8rem}
tbody th{font-weight:600}
tbody tr+tr>*{border-top:1px solid var(--line)}
.n{text-align:right}
.text{white-space:normal;min-width:9rem}
td.good,td.bad,td.warn{color:var(--side)}
td.bad,td.warn{font-weight:600}
.error{display:block;white-space:normal;font-weight:400;color:var(--dim)}
figure{margin:0}
figure svg{display:block;width:100%;max-width:32rem;height:auto;margin:.5rem 0}
figcaption{max-width:40rem}
svg text{fill:var(--fg);font-size:10px}
svg .h{fill:var(--dim);font-size:9px}
svg .b{font-weight:600;font-size:11px}
svg .l{font-size:9px}
svg .g{font-weight:700;font-size:11px;fill:var(--side,var(--dim))}
svg .s{paint-order:stroke;stroke:var(--bg);stroke-width:3px}
.numa-name{paint-order:stroke;stroke:var(--bg);stroke-width:4px}
svg path,polyline{fill:none;stroke:var(--wire)}
.box{fill:var(--card);stroke:var(--wire)}
.box.bad,.box.warn{fill:var(--ground);stroke:var(--side);stroke-width:2}
.box.off,.box.unknown{stroke-dasharray:3 3}
.bus{fill:var(--wire)}
.bus.bad,.bus.warn{fill:var(--side)}
.port{fill:var(--wire)}
path.pcie{stroke-width:2}
path.cpu{stroke-width:1.5;stroke-dasharray:1.5 2.5}
path.numa{stroke:var(--line)}
.nv path{stroke-width:.6}
.u1 path{stroke:var(--use1);stroke-width:.7}
.u2 path{stroke:var(--use2);stroke-width:.9}
.u3 path{stroke:var(--use3);stroke-width:1.2}
.u4 path{stroke:var(--use);stroke-width:1.6}
svg path.bad,svg path.warn{stroke:var(--side);stroke-width:2}
svg path.bad{stroke-dasharray:4 2}
svg path.off{stroke-dasharray:1 2}
svg path.unknown{stroke:var(--line)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1.1rem;padding:0;margin:.3rem 0;color:var(--dim)}
.legend svg{width:26px;height:8px;margin-right:.4rem}
.matrix{width:100%;table-layout:fixed;border-collapse:separate;border-spacing:2px;font-size:.82rem}
.matrix th,.matrix td{padding:.6rem .2rem;text-align:center;border:0!important;min-width:3.1rem}
.matrix thead th{background:none;color:var(--fg)}
.matrix tbody th{text-align:right;padding-right:.5rem}
.matrix td{border-radius:3px}
.matrix .none{background:var(--card);color:var(--dim)}
.matrix .marked{outline:2px solid var(--bad);outline-offset:-1px;font-weight:700}
.scale{font-size:.85rem}
.scale span{display:inline-block;width:9rem;max-width:40vw;height:.7rem;border-radius:3px}
.note b{display:inline-block;min-width:1rem}
.spark{display:block;width:120px;height:26px}
.spark polyline{stroke:var(--use);stroke-width:1.5}
.spark circle{fill:var(--use)}
.spark .spike{fill:var(--bad)}
.spark .base{stroke:var(--dim);stroke-dasharray:3 3}
footer{display:flex;flex-wrap:wrap;justify-content:space-between;gap:.2rem 2rem;color:var(--dim);margin:2rem 0 0;
padding-top:.5rem;border-top:1px solid var(--line)}
@media(max-width:40rem){
.facts{display:grid;grid-template-columns:1fr 1fr;gap:.3rem .8rem}
body{padding:.7rem .6rem}
nav{margin-left:0}
.verdict{padding:.7rem .8rem}
.score dl{grid-template-columns:repeat(4,1fr);gap:0 .6rem}
th,td{padding:.3rem .4rem;font-size:.85rem}
thead th{white-space:normal;overflow-wrap:normal}
.stack thead{display:none}
.stack tr{display:block;padding:.35rem .3rem}
.stack tr+tr{border-top:1px solid var(--line)}
.stack th,.stack td{display:block;border:0!important;padding:.08rem .3rem;text-align:left;white-space:normal}
.stack th{font-size:.95rem}
.stack td{padding-left:8.4rem;position:relative}
.stack td::before{content:attr(data-label);position:absolute;left:.3rem;color:var(--dim);font-weight:400}
.matrix{width:100%;border-spacing:1px;table-layout:auto}
.matrix th,.matrix td{min-width:0;padding:.4rem 0;font-size:.7rem}
.matrix tbody th{padding-right:.2rem}
}
"""
)
