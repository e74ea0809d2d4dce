// Draws the plans in #data. No library, no network; everything shown is in this file.
'use strict';
const DATA = JSON.parse(document.getElementById('data').textContent), WORDS = JSON.parse(document.getElementById('words').textContent);
const $ = id => document.getElementById(id);
const keep = { get: k => { try { return localStorage.getItem('galvatron.' + k); } catch { return null; } }, set: (k, v) => { try { localStorage.setItem('galvatron.' + k, v); } catch { /* a file may not remember */ } } };
const state = { lang: DATA.lang || keep.get('lang') || (navigator.language.startsWith('zh') ? 'zh' : 'en'), theme: keep.get('theme') || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'),
  stage: [null, null], versus: DATA.compared ? 1 : 0, zoom: 1, only: null };

// words and numbers ---------------------------------------------------------------------------------------------------
const say = (key, values = {}) => device(WORDS[state.lang][key] ?? WORDS.en[key] ?? key).replace(/\{(\w+)\}/g, (_, k) => values[k] ?? '');
const device = t => !DATA.cpu ? t : state.lang === 'zh' ? t.replace(/张 GPU/g, '个进程').replace(/ ?GPU(?= \{)/g, '进程').replace(/ ?GPU ?/g, '进程').replace(/单卡/g, '单进程').replace(/一张卡/g, '一个进程') : t.replace(/GPU/g, 'rank'); // ranks on a CPU are no GPUs
const term = t => WORDS[state.lang].terms[t] || t, kindName = k => WORDS[state.lang].kinds[k] || k;
const comma = () => state.lang === 'zh' ? '、' : ', ';
const num = (x, d = 0) => x.toLocaleString('en-US', { minimumFractionDigits: d, maximumFractionDigits: d }).replace('-', '−');
const digits = x => Math.abs(x) >= 1000 ? 0 : Math.abs(x) >= 100 ? 1 : Math.abs(x) >= 1 ? 2 : 3;
const first = DATA.plans[0], longest = Math.max(0, ...DATA.plans.map(p => p.ms || 0)), fullest = Math.max(0, ...DATA.plans.map(p => Math.max(p.peak || 0, p.budget || 0)));
const GIB = fullest >= 1024, SEC = longest >= 20000; // one unit for the whole page
const memUnit = GIB ? 'GiB' : 'MiB', msUnit = SEC ? 's' : 'ms';
const memNum = mib => num(GIB ? mib / 1024 : mib, GIB ? (fullest >= 102400 ? 1 : 2) : digits(mib)), msNum = ms => num(SEC ? ms / 1000 : ms, SEC ? 2 : longest >= 100 ? 1 : digits(ms));
const mem = mib => `${memNum(mib)} ${memUnit}`, ms = x => `${msNum(x)} ${msUnit}`;
const pct = (x, d = 1) => `${num(100 * x, d)}\u00a0%`, signed = (x, d = 1) => (x > 0 ? '+' : '') + pct(x, d);
const count = n => n >= 1e9 ? `${num(n / 1e9, 2)} B` : n >= 1e6 ? `${num(n / 1e6, 2)} M` : num(n);
const span = (a, b) => a === b ? `${a}` : `${a}–${b}`;
const scheduleName = s => say(s);

// elements ------------------------------------------------------------------------------------------------------------
const SVG = new Set(['svg', 'rect', 'text', 'line', 'path', 'g', 'pattern', 'defs', 'circle', 'title']);
function el(tag, attributes = {}, ...children) {
  const e = SVG.has(tag) ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (v === null || v === undefined || v === false) continue;
    if (k === 'on') for (const [name, f] of Object.entries(v)) e.addEventListener(name, f);
    else if (k === 'tip') tips.set(e, v);
    else if (k === 'style') e.style.cssText = v; // allowed by the page's own policy, unlike the attribute
    else e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...children.flat(9).filter(c => c !== null && c !== undefined && c !== false));
  return e;
}
const fill = (id, ...children) => { $(id).replaceChildren(...children.flat(9).filter(Boolean)); };

// the one tooltip -----------------------------------------------------------------------------------------------------
const tips = new WeakMap();
function tell(e, x, y) {
  const text = tips.get(e), tip = $('tip');
  if (!text) { tip.hidden = true; return; }
  tip.textContent = typeof text === 'function' ? text() : text;
  tip.hidden = false;
  const r = tip.getBoundingClientRect(), pad = 8;
  tip.style.left = Math.max(pad, Math.min(x + 14, innerWidth - r.width - pad)) + 'px';
  tip.style.top = (y + 18 + r.height > innerHeight - pad ? Math.max(pad, y - r.height - 12) : y + 18) + 'px';
}
const withTip = e => { while (e && e !== document.body && !tips.has(e)) e = e.parentNode; return e && tips.has(e) ? e : null; };
for (const name of ['pointermove', 'pointerdown']) document.addEventListener(name, e => { const t = withTip(e.target); t ? tell(t, e.clientX, e.clientY) : $('tip').hidden = true; });
document.addEventListener('keydown', e => { if (e.key === 'Escape') $('tip').hidden = true; });
addEventListener('scroll', () => { $('tip').hidden = true; }, { passive: true });

// A drawing that arrow keys read aloud, mark by mark
function reader(label, svg) {
  svg.setAttribute('role', 'img'); svg.setAttribute('aria-label', label);
  const box = el('div', { class: 'draw', tabindex: 0, role: 'group', 'aria-label': `${label}. ${say('keys')}` }, svg);
  let at = -1;
  const marks = () => [...svg.querySelectorAll('[data-mark]')];
  box.addEventListener('keydown', e => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key], all = marks();
    if (!step || !all.length) return;
    e.preventDefault();
    all[at]?.classList.remove('cursor');
    at = (at + step + all.length) % all.length;
    all[at].classList.add('cursor');
    const r = all[at].getBoundingClientRect();
    tell(all[at], r.left + r.width / 2, r.bottom - 10);
  });
  box.addEventListener('blur', () => { marks()[at]?.classList.remove('cursor'); at = -1; $('tip').hidden = true; });
  return box;
}

// colours: Paul Tol's light set for strategies (dark text on all), his bright set for kinds; both keep apart for colour-blind eyes
const STRATEGY = DATA.colours.strategy, KIND = DATA.colours.kind;
const rgb = h => [1, 3, 5].map(i => parseInt(h.slice(i, i + 2), 16));
const mix = (h, share) => '#' + rgb(h).map(c => Math.round(c + (255 - c) * share).toString(16).padStart(2, '0')).join('');
const light = h => { const [r, g, b] = rgb(h).map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const inkOn = h => light(h) > 0.2 ? 'ink' : 'pale';

// strategies are the same in every plan of the page: number them once, by name
const order = new Map();
for (const p of DATA.plans) for (const s of p.strategies) { const k = looks(s); if (!order.has(k)) order.set(k, order.size); }
function looks(s) { return [s.width, s.ulysses, s.consecutive, s.dp_type, s.recompute, s.dp].join(); }
const colourOf = s => STRATEGY[order.get(looks(s)) % STRATEGY.length];
function words(s) {
  return [s.width === 1 ? say('whole') : say(s.ulysses ? 'ulysses' : 'tensor', { n: s.width }) + (s.consecutive ? '' : ` ${say('strided')}`), s.dp > 1 ? say('data', { n: s.dp }) : null,
    s.shard > 1 ? say(s.dp_type, { n: s.shard }) : null, s.recompute ? say('recompute') : null].filter(Boolean).join(' · ');
}
function patterns(id) {
  return el('defs', {}, el('pattern', { id: `${id}-re`, width: 7, height: 7, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, el('line', { x1: 0, y1: 0, x2: 0, y2: 7, stroke: '#18202b', 'stroke-opacity': .33, 'stroke-width': 2 })),
    el('pattern', { id: `${id}-z3`, width: 6, height: 6, patternUnits: 'userSpaceOnUse' }, el('circle', { cx: 2, cy: 2, r: 1.1, fill: '#18202b', 'fill-opacity': .42 })));
}

// parts of the page ---------------------------------------------------------------------------------------------------
const shown = () => [[first, 'A'], state.versus ? [DATA.plans[state.versus], 'B'] : null].filter(Boolean);
const two = () => state.versus > 0;
const planName = p => !p.change ? p.name : /^[÷×]/.test(p.change[2]) ? `${say(p.change[0])} ${p.change[2]}` : `${say(p.change[0])} ${say(p.change[1])} → ${say(p.change[2])}`;
const whose = (p, tag) => two() ? el('p', { class: 'whose' }, el('span', { class: 'tag' }, tag), planName(p)) : null;
const head = (id, hint, ...more) => [el('h2', { id: `${id}-title` }, say(id)), el('p', { class: 'hint' }, hint, ...more)];
const pair = draw => el('div', { class: `pair${two() ? ' two' : ''}` }, shown().map(([p, tag], i) => el('div', {}, whose(p, tag), draw(p, i))));
const stageOf = (p, i) => Math.min(state.stage[i] ?? p.full ?? 0, p.stages.length - 1);
const stageLayers = (p, k) => { const s = p.stages[k]; return `${say(s.first === s.last ? 'layer' : 'layers')} ${span(s.first, s.last)}`; };

function table(head, rows, { left = 1, caption = null } = {}) {
  const side = i => i < left ? 'left' : null;
  return el('div', { class: 'wide', tabindex: 0, role: 'group', 'aria-label': caption || say('numbers') }, el('table', {}, el('thead', {}, el('tr', {}, head.map((h, i) => el('th', { scope: 'col', class: side(i) }, h)))),
    el('tbody', {}, rows.map(r => el('tr', { class: r.cls }, (r.cells || r).map((c, i) => el(i ? 'td' : 'th', { scope: i ? null : 'row', class: side(i) }, c)))))));
}
const numbers = t => el('details', {}, el('summary', {}, say('numbers')), t);

function delta(a, b, lowGood = true, worth = 5e-4) { // how B differs from A
  if (!a || !b) return null;
  const d = b / a - 1;
  return el('span', { class: Math.abs(d) < worth ? null : (d > 0) === lowGood ? 'up' : 'down' }, Math.abs(d) < worth ? pct(0) : signed(d));
}

function planText(p) { // equal stages, one after the other, are said once
  const stages = p.text.split(' || '), out = [];
  for (const s of stages) out.length && out.at(-1)[0] === s ? out.at(-1)[1]++ : out.push([s, 1]);
  return out.map(([s, n]) => n > 2 ? `${say('stages_of', { n })} (${s})` : Array(n).fill(s).join(' || ')).join(' || ');
}
function summary() {
  const p = first, q = two() ? DATA.plans[state.versus] : null, m = DATA.measured, size = p.world / p.pp;
  const model = p.model ? p.model.name : say('a_plan', { n: p.n_layers });
  const versus = (f, show, low) => q ? el('p', { class: 'sub' }, el('span', { class: 'tag' }, 'B'), f(q) ? show(f(q)) : '–', ' ', delta(f(p), f(q), low)) : null;
  const cards = [];
  if (p.ms) cards.push([say('iteration'), [msNum(p.ms), el('small', {}, ` ${msUnit}`)], [p.recorded ? el('p', { class: 'sub' }, say('recorded')) : null, m?.ms ? el('p', { class: 'sub' }, say('measured_is', { v: ms(m.ms), d: signed(m.ms / p.ms - 1) })) : null, versus(x => x.ms, ms, true)]]);
  if (p.ms) cards.push([say('throughput'), [num(p.bsz / p.ms * 1e3, digits(p.bsz / p.ms * 1e3)), el('small', {}, ` ${say('samples_s')}`)], [p.model ? el('p', { class: 'sub' }, say('tokens_s', { n: num(p.bsz * p.model.seq / p.ms * 1e3) })) : null, versus(x => x.ms && x.bsz / x.ms, x => num(x * 1e3, digits(x * 1e3)), false)]]);
  if (p.peak) cards.push([say('peak'), [memNum(p.peak), el('small', {}, p.budget ? ` ${say('of')} ${mem(p.budget)}` : ` ${memUnit}`)],
    [p.budget ? el('div', { class: `meter${p.peak > p.budget ? ' over' : ''}` }, el('i', { style: `width:${Math.min(100, 100 * p.peak / p.budget)}%` })) : null, el('p', { class: 'sub' }, p.budget ? say(p.peak <= p.budget ? 'fits' : 'over', { n: mem(Math.abs(p.budget - p.peak)) }) : say('no_budget')), versus(x => x.peak, mem, true)]]);
  if (p.priced) cards.push([say('busy'), [num(100 * p.busy, 1), el('small', {}, ' %')], [el('div', { class: 'meter' }, el('i', { style: `width:${100 * p.busy}%` })), el('p', { class: 'sub' }, say(p.pp > 1 ? 'busy_of' : 'busy_of1', { i: p.slow })), versus(x => x.busy, x => pct(x), false)]]);
  fill('summary', el('h1', { id: 'title' }, say(p.world > 1 ? 'on_gpus' : 'on_gpu', { model, n: num(p.world) })),
    el('p', { class: 'lead' }, [say(p.chunks > 1 ? 'batch_in' : 'batch_whole', { bsz: num(p.bsz), chunks: num(p.chunks), micro: num(p.micro) }), p.pp > 1 ? say(size > 1 ? 'stages_in' : 'stages_one', { pp: p.pp, size: num(size) }) : null, p.pp > 1 ? scheduleName(p.schedule) : say('no_pipeline')].filter(Boolean).join(' · ')),
    el('p', { class: 'plan' }, q ? el('span', { class: 'tag' }, 'A') : null, el('code', {}, planText(p)), q ? el('span', { class: 'sub' }, `  ${planName(p)}`) : null), q ? el('p', { class: 'plan' }, el('span', { class: 'tag' }, 'B'), el('code', {}, planText(q)), el('span', { class: 'sub' }, `  ${planName(q)}`)) : null,
    cards.length ? el('dl', { class: 'cards' }, cards.map(([t, big, more]) => el('div', { class: 'card' }, el('dt', {}, t), el('dd', {}, el('span', { class: 'big' }, big), more)))) : null,
    p.priced ? el('ul', { class: 'binds' }, binds(p).map(b => el('li', {}, b))) : null, DATA.notes.map(n => el('p', { class: 'note' }, n[state.lang] || n.en)));
}

function binds(p) {
  const share = p.budget ? p.peak / p.budget : 0, t = p.stages[p.slow].time, work = new Set(DATA.arithmetic);
  const rest = Object.entries(t).filter(([k, v]) => !work.has(k) && v > .001 * p.ms).sort((a, b) => b[1] - a[1]).slice(0, 4).map(([k, v]) => `${term(k)} ${pct(v / p.ms)}`).join(comma());
  const one = p.pp === 1 ? '1' : '';
  return [p.budget ? say((share > 1 ? 'mem_over' : share > .95 ? 'mem_binds' : 'mem_free') + one, { i: p.full, p: pct(share) }) : null, say('time_binds' + one, { i: p.slow, p: pct(p.busy), rest: rest || say('none') })].filter(Boolean);
}

function changes() {
  $('changes').hidden = !two();
  if (!two()) { $('changes').replaceChildren(); return; }
  const p = first, q = DATA.plans[state.versus], rows = [];
  const settings = x => ({ plan: planText(x), pp_deg: x.pp, pp_division: x.stages.map(s => s.last - s.first + 1).join('+'), pipeline_type: scheduleName(x.schedule), chunks: x.chunks, global_bsz: x.bsz, vocab: words(x.strategies[x.vocab]), default_dp_type: x.default_dp });
  const a = settings(p), b = settings(q);
  for (const k of Object.keys(a)) if (a[k] !== b[k]) rows.push([say(k), el('span', { class: k === 'plan' ? 'mono' : null }, String(a[k])), el('span', { class: k === 'plan' ? 'mono' : null }, String(b[k]))]);
  const terms = (what, stage, total, show) => {
    if (!p.priced || !q.priced) return [];
    const x = p.stages[p[stage]][what], y = q.stages[q[stage]][what];
    return [...new Set([...Object.keys(x), ...Object.keys(y)])].map(k => [k, x[k] || 0, y[k] || 0]).filter(r => Math.abs(r[1] - r[2]) > .005 * p[total]).sort((r, s) => Math.abs(s[2] - s[1]) - Math.abs(r[2] - r[1]))
      .map(([k, u, v]) => [term(k), show(u), show(v), (v > u ? '+' : '') + show(v - u)]).concat([{ cls: 'sum', cells: [say('total'), show(p[total]), show(q[total]), (q[total] > p[total] ? '+' : '') + show(q[total] - p[total])] }]);
  };
  const wide = table([say('setting'), 'A', 'B'], rows, { left: 3, caption: say('changes') });
  wide.querySelectorAll('td').forEach(td => td.classList.add('wrap'));
  fill('changes', head('changes', say('changes_hint')), wide, el('div', { class: 'split', style: 'margin-top:1rem' },
    p.priced && q.priced ? [['time', 'tight', 'ms', msNum, msUnit], ['memory', 'full', 'peak', memNum, memUnit]].map(([w, st, total, show, unit]) => el('div', {}, el('h3', {}, `${say(w)}, ${unit}`), table([say('term'), 'A', 'B', say('change')], terms(w, st, total, show), { caption: say(w) }))) : null));
}

// ranks x layers --------------------------------------------------------------------------------------------------------
function map(width = 0) {
  const rowsOf = p => p.rows * p.pp;
  const bands = shown().some(([p]) => !p.rows || rowsOf(p) > 64);
  const most = Math.max(...shown().flatMap(([p]) => p.stages.map(s => s.runs.reduce((n, r) => n + r[1] - r[0] + 1, 0))));
  fill('map', head('map', say(bands ? 'map_hint_band' : 'map_hint')), pair((p, i) => drawMap(p, i, bands, most)), strategies());
}
function drawMap(p, which, bands, most) {
  const host = el('div'), n = p.world / p.pp, rows = bands ? 1 : p.rows, id = `m${which}`;
  sized(host, W => {
    const left = W < 480 ? 62 : 92, unit = (W - left - 1) / most, rh = bands ? (p.pp > 16 ? 15 : 26) : rowHeight(rows * p.pp), gap = bands ? 4 : 21, high = rows * rh, top = 2;
    const svg = el('svg', { width: W, height: top + p.pp * (high + gap) + (bands ? 14 : 0) }, patterns(id));
    p.stages.forEach((s, k) => {
      const y = top + k * (high + gap);
      svg.append(el('text', { x: 0, y: y + (high > 30 ? 13 : high / 2 + 4) }, p.pp > 1 ? `${W < 480 ? '' : say('stage') + ' '}${k}` : ''));
      if (high > 30 || p.pp === 1) svg.append(el('text', { x: 0, y: y + (p.pp > 1 ? 28 : high / 2 + 4), class: 'quiet' }, W < 480 ? span(k * n, k * n + n - 1) : say('gpu_n', { r: span(k * n, k * n + n - 1) })));
      let x = left;
      for (const [a, b, si, what] of s.runs) {
        const st = p.strategies[si], w = (b - a + 1) * unit, dim = state.only !== null && state.only !== looks(st), layer = what ? say(what === 'head' ? 'head_layer' : what) : `${say(a === b ? 'layer' : 'layers')} ${span(a, b)}`;
        for (let r = 0; r < rows; r++) {
          const place = st.places?.[r], c = colourOf(st), shade = place && st.width > 1 && !bands ? mix(c, .62 * place[0] / st.width) : c;
          const about = [layer, `${st.name}: ${words(st)}`, place && !bands ? say('gpu_n', { r: k * n + r }) : say('gpu_n', { r: span(k * n, k * n + n - 1) }), place && !bands && st.width > 1 ? say(st.ulysses ? 'part_seq' : 'part', { i: place[0] + 1, n: st.width }) : null, place && !bands && st.dp > 1 ? say('samples', { i: place[1] + 1, n: st.dp }) : null].filter(Boolean).join('\n');
          const box = { x, y: y + r * rh, width: Math.max(w, 1), height: rh };
          const g = el('g', { class: dim ? 'faint' : null, tip: about }, el('rect', { ...box, fill: shade, class: 'cell', 'data-mark': r === 0 || !bands && rows <= 16, tip: about }));
          if (st.recompute) g.append(el('rect', { ...box, fill: `url(#${id}-re)`, 'pointer-events': 'none' }));
          if (st.dp_type === 'zero3' && st.shard > 1) g.append(el('rect', { ...box, fill: `url(#${id}-z3)`, 'pointer-events': 'none' }));
          const label = bands ? (w > 190 ? `${span(a, b)}  ${st.name}` : what ? '' : span(a, b)) : place && rh >= 13 && (st.width > 1 || st.dp > 1) ? `${st.width > 1 ? (st.ulysses ? 's' : 't') + place[0] : ''}${st.dp > 1 ? ` d${place[1]}` : ''}`.trim() : '';
          if (label && w > 7.2 * label.length && rh >= 12) { g.append(el('text', { x: x + w / 2, y: y + r * rh + rh / 2 + 4, 'text-anchor': 'middle', class: 'ink', 'pointer-events': 'none', style: 'font-size:11px' }, label)); }
          svg.append(g);
        }
        if (unit >= 5 && b > a) for (let j = 1; j <= b - a; j++) svg.append(el('line', { x1: x + j * unit, x2: x + j * unit, y1: y, y2: y + high, stroke: '#fff', 'stroke-opacity': .5, 'pointer-events': 'none' }));
        x += w;
      }
      if (!bands) under(svg, s, left, unit, y + high);
    });
    return reader(`${say('map')}: ${p.text}`, svg);
  });
  return el('div', {}, host, !bands && n > rows ? el('p', { class: 'sub' }, say('map_repeat', { k: rows, n: num(n - rows) })) : null);
}
const rowHeight = rows => rows <= 8 ? 24 : rows <= 16 ? 18 : rows <= 32 ? 13 : 8;
function under(svg, s, left, unit, y) { // numbers of the layers below a band
  let x = left;
  for (const [a, b, , what] of s.runs) { const w = (b - a + 1) * unit, t = what ? say(what === 'head' ? 'head_layer' : what) : span(a, b); if (w > 6.5 * t.length + 4) svg.append(el('text', { x: x + w / 2, y: y + 12, 'text-anchor': 'middle', class: 'quiet' }, t)); x += w; }
}
function strategies() {
  const seen = new Map();
  for (const [p, tag] of shown()) p.strategies.forEach((s, i) => { const k = looks(s), o = seen.get(k) || { s, at: [] }; const n = s.layers ? say(s.layers === 1 ? 'one_layer' : 'n_layers', { n: s.layers }) : ''; const text = i === p.vocab ? (n ? say('also_vocab', { n }) : say('only_vocab')) : n; o.at.push((two() ? `${tag}: ` : '') + text); seen.set(k, o); });
  return el('ul', { class: 'strategies' }, [...seen].map(([k, { s, at }]) => el('li', {}, el('button', { type: 'button', 'aria-pressed': String(state.only === k), on: { click: () => { state.only = state.only === k ? null : k; map(); focusOn('.strategies button', [...seen.keys()].indexOf(k)); } } },
    el('svg', { viewBox: '0 0 26 26', 'aria-hidden': 'true' }, patterns(`l${order.get(k)}`), el('rect', { width: 26, height: 26, fill: colourOf(s) }), s.recompute ? el('rect', { width: 26, height: 26, fill: `url(#l${order.get(k)}-re)` }) : null, s.dp_type === 'zero3' && s.shard > 1 ? el('rect', { width: 26, height: 26, fill: `url(#l${order.get(k)}-z3)` }) : null),
    el('span', {}, el('code', {}, s.name), ` · ${at.join(comma())}`), el('small', {}, words(s))))));
}
const focusOn = (selector, i) => document.querySelectorAll(selector)[i]?.focus();

// stacked bars ----------------------------------------------------------------------------------------------------------
const kindOf = {}; for (const what of ['memory', 'time']) { kindOf[what] = {}; for (const [k, terms] of DATA.kinds[what]) for (const t of terms) kindOf[what][t] = k; }
const kindsIn = (what, values) => { const sums = new Map(DATA.kinds[what].map(([k]) => [k, []])); sums.set('other', []); for (const [t, v] of Object.entries(values)) if (v > 0) sums.get(kindOf[what][t] || 'other').push([t, v]); return [...sums].filter(([, ts]) => ts.length); };
const kindColour = (what, k) => KIND[what][k] || '#bbbbbb';
const roundUp = x => { const e = 10 ** Math.floor(Math.log10(x || 1)); return [1, 2, 2.5, 5, 10].map(k => k * e).find(v => v >= x) || x; };
function bars(what, p, which, most, show, select) {
  const many = p.stages.length > 12, list = el('div', { class: 'bars' });
  p.stages.forEach((s, k) => {
    const kinds = kindsIn(what, s[what]), total = Object.values(s[what]).reduce((a, v) => a + Math.max(v, 0), 0), track = el('span', { class: 'track' });
    let x = 0;
    for (const [kind, terms] of kinds) {
      const v = terms.reduce((a, t) => a + t[1], 0);
      track.append(el('i', { style: `left:${100 * x / most}%;width:${100 * v / most}%;background:${kind === 'wait' ? 'var(--wait)' : kindColour(what, kind)}`, tip: () => [`${kindName(kind)}: ${show(v)} (${pct(v / total)})`, ...(terms.length > 1 || term(terms[0][0]) !== kindName(kind) ? [...terms].sort((a, b) => b[1] - a[1]).filter(t => t[1] > 1e-4 * total).map(([t, u]) => `  ${term(t)} ${show(u)}`) : [])].join('\n') }));
      x += v;
    }
    if (what === 'memory' && p.budget) track.append(el('b', { class: total > p.budget ? 'over' : null, style: `left:${100 * p.budget / most}%`, tip: `${say('budget')} ${mem(p.budget)}` }));
    const real = what === 'memory' && which === 0 && DATA.measured?.mib?.[k];
    if (real) track.append(el('u', { style: `left:${Math.min(100, 100 * real / most)}%`, tip: `${say('measured_word')} ${mem(real)}\n${say('predicted')} ${mem(total)} (${signed(real / total - 1)})` }));
    const parts = [el('span', { class: 'name' }, p.stages.length > 1 ? `${say('stage')} ${k}` : stageLayers(p, k), p.stages.length > 1 ? el('small', {}, stageLayers(p, k)) : null), track, el('span', { class: 'value' }, show(what === 'time' ? total - (s.time['pipeline wait'] || 0) : total))];
    list.append(select ? el('button', { type: 'button', class: 'row', 'aria-pressed': String(stageOf(p, which) === k), on: { click: () => { state.stage[which] = k; memory(); focusOn('#memory button.row', indexOf(which, k)); } } }, parts) : el('div', { class: 'row' }, parts));
  });
  return el('div', { class: many ? 'many' : null }, list, scaleOf(what, most));
}
const indexOf = (which, k) => (which ? first.stages.length : 0) + k;
const perUnit = { memory: GIB ? 1024 : 1, time: SEC ? 1000 : 1 };
const tickText = (what, v) => `${+(v / perUnit[what]).toPrecision(6)}`.replace(/\B(?=(\d{3})+$)/g, ','); // a round number, without superfluous digits
function ticks(what, most, n) { const step = roundUp(most / n / perUnit[what]) * perUnit[what], at = []; for (let v = 0; v <= most; v += step) at.push(v); return at; }
function scaleOf(what, most) {
  const unit = what === 'time' ? msUnit : memUnit;
  return el('div', { class: 'scale', 'aria-hidden': 'true' }, el('div', {}, ticks(what, most * .97, innerWidth < 560 ? 3 : two() ? 4 : 5).map((v, i) => el('span', { style: `left:${100 * v / most}%${i ? '' : ';transform:none'}` }, i ? tickText(what, v) : `0 ${unit}`))));
}
const legend = (what, plans, extra = []) => el('ul', { class: 'legend' }, [...new Set(plans.flatMap(p => p.stages.flatMap(s => kindsIn(what, s[what]).map(k => k[0]))))].sort((a, b) => rankOf(what, a) - rankOf(what, b)).map(k => el('li', {}, el('span', { class: 'swatch', style: `background:${k === 'wait' ? 'var(--wait)' : kindColour(what, k)}` }), kindName(k))), extra);
const rankOf = (what, k) => { const i = DATA.kinds[what].findIndex(x => x[0] === k); return i < 0 ? 99 : i; };
function stageTable(what, p, show, unit) {
  const terms = [...new Set(p.stages.flatMap(s => Object.keys(s[what]).filter(t => Math.abs(s[what][t]) > 1e-9)))].sort((a, b) => rankOf(what, kindOf[what][a]) - rankOf(what, kindOf[what][b]));
  const cols = p.stages.length > 12 ? [...new Set([0, 1, p.full ?? 0, p.slow ?? 0, p.stages.length - 2, p.stages.length - 1])].sort((a, b) => a - b) : p.stages.map((_, i) => i);
  const rows = terms.map(t => [term(t), kindName(kindOf[what][t] || 'other'), ...cols.map(i => show(p.stages[i][what][t] || 0))]);
  rows.push({ cls: 'sum', cells: [say('total'), '', ...cols.map(i => show(Object.values(p.stages[i][what]).reduce((a, b) => a + b, 0)))] });
  return numbers(table([`${say('term')}, ${unit}`, say('kind'), ...cols.map(i => `${say('stage')} ${i}`)], rows, { left: 2, caption: say(what) }));
}

function memory() {
  const plans = shown().map(s => s[0]).filter(p => p.stages[0].memory), on = plans.length > 0;
  $('memory').hidden = !on;
  if (!on) return;
  const most = 1.02 * Math.max(...plans.flatMap(p => [p.budget || 0, ...p.stages.map(s => Object.values(s.memory).reduce((a, b) => a + b, 0))]), ...(DATA.measured?.mib || []));
  const marks = [plans.some(p => p.budget) ? el('li', {}, el('span', { class: 'swatch line' }), say('budget')) : null, DATA.measured?.mib ? el('li', {}, el('span', { class: 'swatch mark' }), say('measured_word')) : null];
  fill('memory', head('memory', say('memory_hint')), pair((p, i) => p.stages[0].memory ? el('div', {}, el('div', { class: 'split' }, el('div', {}, bars('memory', p, i, most, mem, true), two() ? null : legend('memory', plans, marks)), el('div', {}, treemap(p, i))), stageTable('memory', p, memNum, memUnit)) : null), two() ? legend('memory', plans, marks) : null);
}

// squarified treemap: rows whose worst rectangle stays closest to a square
function squares(items, x, y, w, h) {
  const out = [], total = items.reduce((a, i) => a + i.v, 0);
  let rest = items.slice().sort((a, b) => b.v - a.v), area = total > 0 ? w * h / total : 0;
  const worst = (row, side) => { const s = row.reduce((a, i) => a + i.v, 0) * area; return Math.max(...row.map(i => Math.max(side * side * i.v * area / (s * s), s * s / (side * side * i.v * area)))); };
  while (rest.length) {
    const side = Math.min(w, h), row = [rest[0]];
    let k = 1;
    while (k < rest.length && worst([...row, rest[k]], side) <= worst(row, side)) row.push(rest[k++]);
    const thick = row.reduce((a, i) => a + i.v, 0) * area / side;
    let at = 0;
    for (const i of row) { const len = i.v * area / thick; out.push(w >= h ? { ...i, x, y: y + at, w: thick, h: len } : { ...i, x: x + at, y, w: len, h: thick }); at += len; }
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    rest = rest.slice(k);
  }
  return out;
}
function treemap(p, which) {
  const k = stageOf(p, which), s = p.stages[k], values = Object.values(s.memory).reduce((a, b) => a + Math.max(b, 0), 0), host = el('div');
  sized(host, W => {
    const H = Math.round(Math.min(270, Math.max(190, W * .62))), svg = el('svg', { width: W, height: H });
    const kinds = kindsIn('memory', s.memory).map(([kind, terms]) => ({ kind, terms, v: terms.reduce((a, t) => a + t[1], 0) }));
    const used = p.budget > values && values > .4 * p.budget ? W * values / p.budget : W; // a nearly empty GPU would be nothing but free
    if (used < W) box(svg, { x: used, y: 0, w: W - used, h: H }, 'var(--idle)', 'quiet', say('free'), p.budget - values, p.budget);
    for (const g of squares(kinds, 0, 0, used, H)) {
      const c = kindColour('memory', g.kind);
      squares(g.terms.map(([t, v]) => ({ t, v })), g.x, g.y, g.w, g.h).forEach((b, j) => box(svg, b, j ? mix(c, Math.min(.3, .15 * j)) : c, inkOn(j ? mix(c, Math.min(.3, .15 * j)) : c), term(b.t), b.v, values));
    }
    return reader(`${say('memory')}, ${say('stage_n', { i: k })}`, svg);
  });
  return el('div', {}, el('h3', {}, say('inside', { i: k, v: mem(values) }), s.in_flight > 1 ? el('span', { class: 'sub', style: 'font-weight:400' }, ` · ${say('in_flight', { n: s.in_flight })}`) : null), host);
}
function box(svg, b, colour, ink, name, v, whole) {
  svg.append(el('rect', { x: b.x, y: b.y, width: Math.max(b.w, .5), height: Math.max(b.h, .5), fill: colour, class: 'cell', 'data-mark': true, tip: `${name}: ${mem(v)} (${pct(v / whole)})` }));
  const fits = Math.floor((b.w - 11) / 6.6);
  const cut = state.lang === 'zh' && /[^ -~]/.test(name) ? Math.floor(fits / 1.9) : fits, short = name.length <= cut ? name : `${name.slice(0, cut - 1)}…`;
  if (b.h > 20 && (cut >= 5 || cut >= name.length)) svg.append(el('text', { x: b.x + 7, y: b.y + 16, class: ink, 'pointer-events': 'none' }, short));
  if (b.h > 36 && fits >= mem(v).length - 1) svg.append(el('text', { x: b.x + 7, y: b.y + 31, class: ink, 'pointer-events': 'none', style: 'font-size:11px' }, mem(v)));
}

function time() {
  const plans = shown().map(s => s[0]).filter(p => p.stages[0].time), on = plans.length > 0;
  $('time').hidden = !on;
  if (!on) return;
  const most = Math.max(...plans.map(p => p.ms));
  fill('time', head('time', say('time_hint')), pair((p, i) => p.stages[0].time ? el('div', {}, bars('time', p, i, most, ms, false), stageTable('time', p, msNum, msUnit)) : null), legend('time', plans));
}

// the timeline ----------------------------------------------------------------------------------------------------------
function timeline() {
  const plans = shown().map(s => s[0]).filter(p => p.timeline), on = plans.length > 0;
  $('timeline').hidden = !on;
  if (!on) return;
  const most = Math.max(...plans.map(p => p.timeline.end - (p.timeline.cut ? p.timeline.cut[1] - p.timeline.cut[0] : 0)));
  const zoom = el('input', { type: 'range', min: 0, max: 5, step: .25, value: Math.log2(state.zoom), id: 'zoom', on: { input: e => { state.zoom = 2 ** +e.target.value; draw(); } } });
  const body = el('div');
  const draw = () => body.replaceChildren(pair(p => p.timeline ? drawTimeline(p, most) : null));
  draw();
  fill('timeline', head('timeline', say('timeline_hint')), el('div', { class: 'tools' }, el('label', { for: 'zoom' }, say('zoom')), zoom), body,
    el('ul', { class: 'legend' }, ['F', 'B', 'U'].map(k => el('li', {}, el('svg', { width: 14, height: 14, 'aria-hidden': 'true' }, el('rect', { width: 14, height: 14, rx: 3, class: k })), say(k))), el('li', {}, el('span', { class: 'swatch', style: 'background:var(--idle)' }), say('idle'))));
}
function drawTimeline(p, most) {
  const t = p.timeline, host = el('div'), cut = t.cut, skip = cut ? cut[1] - cut[0] : 0;
  sized(host, W => {
    const left = W < 480 ? 24 : 62, gapW = cut ? 26 : 0, wide = (W - left - 12) * state.zoom, rh = p.pp > 16 ? 12 : p.pp > 8 ? 17 : 23, scale = (wide - gapW) / most;
    const X = v => left + (cut && v >= cut[1] ? (v - skip) * scale + gapW : Math.min(v, cut ? cut[0] : v) * scale);
    const svg = el('svg', { width: left + wide + 12, height: p.pp * rh + 26 }), end = X(t.end);
    t.rows.forEach((row, k) => {
      const y = k * rh + 2;
      svg.append(el('text', { x: 0, y: y + rh / 2 + 3, class: rh < 14 ? 'quiet' : null }, `${W < 480 || rh < 14 ? '' : say('stage') + ' '}${k}`), el('rect', { x: left, y, width: end - left, height: rh - 3, class: 'idle' }));
      for (const [kind, m, a, b] of row) {
        const x = X(a), w = Math.max(X(b) - x - .6, .4);
        svg.append(el('rect', { x, y, width: w, height: rh - 3, class: `act ${kind}`, 'data-mark': true, tip: () => `${say('stage')} ${k}: ${kind === 'U' ? say('U') : say('of_micro', { kind: say(kind), m })}\n${ms(a)} … ${ms(b)} (${ms(b - a)})` }));
        if (kind !== 'U' && rh > 14 && w > 9 * String(m).length) svg.append(el('text', { x: x + w / 2, y: y + rh / 2 + 3, 'text-anchor': 'middle', class: 'ink', style: 'font-size:11px', 'pointer-events': 'none' }, String(m)));
      }
      if (cut) svg.append(el('rect', { x: X(cut[0]), y, width: gapW, height: rh - 3, fill: 'var(--surface)' }), el('text', { x: X(cut[0]) + gapW / 2, y: y + rh / 2 + 2, 'text-anchor': 'middle', class: 'quiet' }, '···'));
    });
    const at = ticks('time', t.end, Math.max(2, Math.min(40, wide / 90)) * t.end / most), base = p.pp * rh + 16;
    let last = -99;
    for (const v of at) if (!cut || v <= cut[0] || v >= cut[1]) { const x = X(v); if (x - last > 48 && x < left + wide - 8) { svg.append(el('text', { x, y: base, 'text-anchor': v ? 'middle' : 'start', class: 'quiet' }, v ? tickText('time', v) : `0 ${msUnit}`)); last = x; } }
    return el('div', { class: 'scroll', tabindex: state.zoom > 1 ? 0 : null }, reader(`${say('timeline')}: ${ms(t.end)}`, svg));
  });
  return el('div', {}, host, cut ? el('p', { class: 'sub' }, say('timeline_cut', { t: ms(skip) })) : null);
}

// measured ----------------------------------------------------------------------------------------------------------------
function measured() {
  const m = DATA.measured, p = first;
  $('measured').hidden = !m;
  if (!m) return;
  const rows = [], against = (a, b) => a ? signed(b / a - 1) : '–';
  if (m.ms) rows.push([say('step_time'), p.ms ? ms(p.ms) : '–', ms(m.ms), against(p.ms, m.ms)]);
  if (m.ms) rows.push([say('throughput'), p.ms ? `${num(p.bsz / p.ms * 1e3, 2)}` : '–', `${num(p.bsz / m.ms * 1e3, 2)}`, against(p.ms && p.bsz / p.ms, p.bsz / m.ms)]);
  (m.mib || []).forEach((v, i) => { const s = p.stages[i]?.memory, want = s ? Object.values(s).reduce((a, b) => a + b, 0) : null; rows.push([say('peak_of', { i }), want ? mem(want) : '–', mem(v), against(want, v)]); });
  const host = el('div'), times = m.steps.filter(s => s[1] > 0);
  sized(host, W => {
    const left = 70, H = 190, top = 10, ys = times.map(s => s[1]), sorted = ys.slice().sort((a, b) => a - b), high = Math.max(1.15 * sorted[Math.floor(.95 * (ys.length - 1))], 1.1 * (p.ms || 0)), lo = times[0]?.[0] ?? 0, hi = Math.max(times.at(-1)?.[0] ?? 1, lo + 1);
    const X = s => left + (W - left - 12) * (s - lo) / (hi - lo), Y = v => top + (H - top - 28) * (1 - Math.min(v, high) / high), svg = el('svg', { width: W, height: H }), at = ticks('time', high, 4);
    for (const v of at) svg.append(el('line', { x1: left, x2: W - 12, y1: Y(v), y2: Y(v), class: 'grid' }), el('text', { x: left - 8, y: Y(v) + 4, 'text-anchor': 'end', class: 'quiet' }, v ? tickText('time', v) : `0 ${msUnit}`));
    if (p.ms) svg.append(el('line', { x1: left, x2: W - 12, y1: Y(p.ms), y2: Y(p.ms), stroke: 'var(--text)', 'stroke-dasharray': '6 4', 'stroke-width': 1.5, tip: `${say('predicted')} ${ms(p.ms)}` }));
    svg.append(el('path', { d: times.map((s, i) => `${i ? 'L' : 'M'}${X(s[0]).toFixed(1)} ${Y(s[1]).toFixed(1)}`).join(''), fill: 'none', stroke: '#4477aa', 'stroke-width': 1.6 }));
    for (const s of times) svg.append(el('circle', { cx: X(s[0]), cy: Y(s[1]), r: times.length > 150 ? 1.5 : 3, fill: '#4477aa', 'data-mark': true, tip: () => `${say('step')} ${s[0]}: ${ms(s[1])}${s[2] != null ? `\n${say('loss')} ${num(s[2], 3)}` : ''}` }));
    for (const s of [lo, hi]) svg.append(el('text', { x: X(s), y: H - 8, 'text-anchor': s === lo ? 'start' : 'end', class: 'quiet' }, `${say('step')} ${s}`));
    return reader(say('step_time'), svg);
  });
  const losses = m.steps.filter(s => s[2] != null);
  fill('measured', head('measured', say('measured_hint', { n: m.n, of: m.of, file: m.file })), el('div', { class: 'split' }, el('div', {}, host), el('div', {}, table([say('quantity'), say('predicted'), say('measured_word'), say('difference')], rows, { caption: say('measured') }),
    losses.length > 1 ? el('p', { class: 'sub', style: 'margin-top:.6rem' }, say('loss_from', { a: num(losses[0][2], 3), b: num(losses.at(-1)[2], 3), n: m.total })) : null)), el('ul', { class: 'legend' }, el('li', {}, el('span', { class: 'swatch line' }), say('predicted')), el('li', {}, el('span', { class: 'swatch', style: 'background:#4477aa;border-radius:50%' }), say('measured_word'))));
}

function near() {
  const all = DATA.plans.map((p, i) => [p, i]).filter(([p]) => p.change);
  $('near').hidden = !all.length;
  if (!all.length) return;
  const rows = [[first, 0], ...all].sort((a, b) => (a[0].fits === false) - (b[0].fits === false) || a[0].ms / a[0].bsz - b[0].ms / b[0].bsz).map(([p, i]) => ({ cls: p.fits === false ? 'no' : i ? null : 'sum', cells: [i ? planName(p) : say('this_plan'), msNum(p.ms), i ? delta(first.ms / first.bsz, p.ms / p.bsz) : '', [memNum(p.peak), p.fits === false ? el('small', { class: 'up' }, el('br'), say('too_much')) : ''],
    i ? el('button', { type: 'button', 'aria-pressed': String(state.versus === i), 'aria-label': `${say('compare')}: ${planName(p)}`, on: { click: () => { choose(state.versus === i ? 0 : i); if (state.versus) $('summary').scrollIntoView({ block: 'start' }); } } }, el('span', { class: 'long' }, say(state.versus === i ? 'stop' : 'compare')), el('span', { class: 'short', 'aria-hidden': 'true' }, state.versus === i ? '✕' : '⇄')) : ''] }));
  fill('near', head('near', say('near_hint')), table([say('change'), `${say('time')}, ${msUnit}`, say('difference'), `${say('memory')}, ${memUnit}`, say('compare')], rows, { caption: say('near') }));
}

function about() {
  const p = first, facts = [[say('model'), p.model ? `${p.model.name}${comma()}${count(p.model.params)}${comma()}${p.n_layers} × ${p.model.types}` : null], [say('hardware'), DATA.about.hardware], [say('profile'), DATA.about.profile], [say('options'), DATA.about.options], ['Galvatron', DATA.version]];
  fill('about', el('h2', {}, say('about')), DATA.about.formula ? el('p', { class: 'hint' }, say('formula')) : null, el('dl', { class: 'facts' }, facts.filter(f => f[1]).map(([k, v]) => [el('dt', {}, k), el('dd', {}, v)])));
}

// drawing again -----------------------------------------------------------------------------------------------------------
const waiting = new Map(); // host -> how to draw it at a width
function sized(host, draw) { waiting.set(host, draw); host.style.minHeight = '1px'; queueMicrotask(() => paint(host)); }
function paint(host) { const W = Math.floor(host.clientWidth); if (host.isConnected && W > 40 && host._w !== `${W}`) { host._w = `${W}`; host.replaceChildren(waiting.get(host)(W)); } }
new ResizeObserver(() => { for (const h of waiting.keys()) h.isConnected ? paint(h) : waiting.delete(h); }).observe($('main'));
function choose(i) { state.versus = i; $('versus').value = i; state.stage[1] = null; render(); }
function render() {
  document.documentElement.lang = state.lang === 'zh' ? 'zh-CN' : 'en';
  document.documentElement.dataset.theme = state.theme;
  document.querySelectorAll('[data-t]').forEach(e => { e.textContent = say(e.dataset.t); });
  const p = first, model = p.model ? p.model.name : say('a_plan', { n: p.n_layers });
  document.title = `${say(p.world > 1 ? 'on_gpus' : 'on_gpu', { model, n: p.world })} · Galvatron`;
  $('lang').textContent = say('lang'); $('lang').lang = state.lang === 'zh' ? 'en' : 'zh-CN'; $('theme').textContent = say(state.theme === 'dark' ? 'light' : 'dark');
  $('versus-box').hidden = DATA.plans.length < 2;
  $('versus').replaceChildren(...DATA.plans.map((q, i) => el('option', { value: i }, i ? planName(q) : say('nothing'))));
  $('versus').value = state.versus;
  for (const draw of [summary, changes, map, memory, time, timeline, measured, near, about]) draw();
}
$('lang').addEventListener('click', () => { state.lang = state.lang === 'zh' ? 'en' : 'zh'; keep.set('lang', state.lang); render(); });
$('theme').addEventListener('click', () => { state.theme = state.theme === 'dark' ? 'light' : 'dark'; keep.set('theme', state.theme); render(); });
$('versus').addEventListener('change', e => choose(+e.target.value));
render();
