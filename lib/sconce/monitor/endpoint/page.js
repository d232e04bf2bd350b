'use strict';
// Everything that a run, a serving or an app has named is put in as text, never as HTML.
const EVERY_MS = 1000, TIMEOUT_MS = 5000, KEPT_MS = 120000, GAP_MS = 5000;
const MARKS = {running: '●', done: '✓', stopped: '■', failed: '✕', DEAD: '✕', SILENT: '▲'};
const $ = id => document.getElementById(id);
const body = id => document.querySelector('#' + id + ' tbody');
const history_ = new Map();
let data = null, answered = null, busy = false, timer = null, chosen = location.hash.slice(1), cursor = null, drawn = null;

// Elements

function el(tag, cls, text) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  if (text !== undefined) node.textContent = text;
  return node;
}
function svg(tag, attributes, parent) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  if (parent) parent.append(node);
  return node;
}
function put(node, text) { if (node.textContent !== text) node.textContent = text; }
function show(node, shown) { node.hidden = !shown; }
// The children of `parent` become one for each item. They keep their focus, so each is known by a key.
function keyed(parent, items, key, make, update) {
  const old = new Map(Array.from(parent.children, node => [node.dataset.key, node]));
  const used = new Set();
  let at = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let node = old.get(name);
    old.delete(name);
    if (!node) { node = make(item); node.dataset.key = name; }
    if (node === at) at = at.nextElementSibling; else parent.insertBefore(node, at);
    used.add(node);
    update(node, item);
  }
  for (const node of Array.from(parent.children)) if (!used.has(node)) node.remove();
}
function row(classes) {
  const tr = el('tr');
  classes.forEach((cls, n) => {
    const cell = el(n ? 'td' : 'th', cls);
    if (!n) cell.scope = 'row';
    tr.append(cell);
  });
  return tr;
}

// Numbers

function number(x) {
  if (typeof x !== 'number') return '–';
  const size = Math.abs(x);
  if (x === 0) return '0';
  if (size >= 1e10 || size < 1e-4) return x.toExponential(2);
  if (size >= 1000) return Math.round(x).toLocaleString('en-US');
  return String(Number(x.toPrecision(4)));
}
function scaled(x, steps, unit) {
  let n = 0;
  while (n < steps.length - 1 && Math.abs(x) >= steps[n + 1][0]) n++;
  return Number((x / steps[n][0]).toPrecision(3)) + ' ' + steps[n][1] + unit;
}
const TIMES = [[1e-9, 'n'], [1e-6, 'µ'], [1e-3, 'm'], [1, '']];
const SIZES = [[1, ''], [1e3, 'K'], [1e6, 'M'], [1e9, 'G'], [1e12, 'T']];
function measure(x, unit) {
  if (typeof x !== 'number') return '–';
  if (unit === 's') return x >= 60 ? duration(x) : scaled(x, TIMES, 's');
  if (unit === 'bytes') return scaled(x, SIZES, 'B');
  if (unit === 'ratio') return number(Math.round(x * 1000) / 10) + ' %';
  if (unit === 'C' || unit === 'W') return number(x) + ' ' + unit;
  return number(x);
}
function duration(s) {
  const minutes = Math.floor(s / 60);
  if (s < 60) return Math.floor(s) + ' s';
  if (s < 3600) return minutes + ' min';
  if (s < 360000) return Math.floor(minutes / 60) + ' h ' + minutes % 60 + ' min';
  return number(Math.floor(s / 86400)) + ' days';
}
function clock(date) { return [date.getHours(), date.getMinutes(), date.getSeconds()].map(n => String(n).padStart(2, '0')).join(':'); }
function last(path) { return (path || '').split('/').filter(Boolean).pop() || ''; }
function mark(state) { return (MARKS[state] || '■') + ' ' + state; }

// The last two minutes

function remember(key, value) {
  let points = history_.get(key);
  if (!points) history_.set(key, points = []);
  points.seen = data.time;
  if (points.length && points[points.length - 1][0] >= data.time) return;
  points.push([data.time, typeof value === 'number' ? value : null]);
  while (points[0][0] < data.time - KEPT_MS) points.shift();
}
// `zero`: the scale begins at 0, as for a rate.
function spark(node, key, value, zero) {
  remember(key, value);
  const points = history_.get(key), known = points.filter(p => p[1] !== null).map(p => p[1]);
  node.replaceChildren();
  if (known.length < 2) return;
  let low = Math.min(...known), high = Math.max(...known);
  if (zero && low > 0) low = 0;
  if (high === low) { low -= 1; high += 1; }
  const x = t => (100 * (1 - (data.time - t) / KEPT_MS)).toFixed(2), y = v => (23 - 21 * (v - low) / (high - low)).toFixed(2);
  let line = '', area = '', first = null, before = null;
  for (const [t, v] of points.concat([[Infinity, null]])) {
    const joined = v !== null && before !== null && t - before < GAP_MS;
    if (!joined && first !== null) { area += 'L' + x(before) + ' 24L' + x(first) + ' 24Z'; first = before = null; }
    if (v === null) continue;
    line += (joined ? 'L' : 'M') + x(t) + ' ' + y(v);
    area += (joined ? 'L' : 'M') + x(t) + ' ' + y(v);
    if (first === null) first = t;
    before = t;
  }
  svg('path', {d: area, class: 'area'}, node);
  svg('path', {d: line}, node);
}
function sparkline() { return svg('svg', {class: 'spark', viewBox: '0 0 100 24', preserveAspectRatio: 'none', 'aria-hidden': 'true'}); }

// Tiles

function tiles() {
  const by = new Map(data.metrics.map(m => [m.name, m])), list = [];
  const get = name => by.get(name) || {};
  const add = (key, label, value, unit, beside, course = value) => {
    if (typeof value === 'number') list.push({key, label, value, unit, beside, course});
  };
  const late = get('sconce_deadlines_missed_total');
  const total = (name, label) => {
    if (get(name).value > 0) add(name, label, get(name).rate, '', number(get(name).value) + ' in all');
  };
  const times = (name, label) => {
    const metric = get(name), latest = metric.latest || {}, when = metric.rate > 0 ? '' : ', idle';
    add(name, label + ', p50', latest.p50, 's', 'p99 ' + measure(latest.p99, 's') + when);
  };
  add('decisions', 'Decisions/s', get('sconce_decisions_total').rate, '', number(get('sconce_decisions_total').value) + ' in all');
  times('sconce_decision_seconds', 'Decision time');
  total('sconce_requests_total', 'Requests/s');
  times('sconce_request_seconds', 'Request time');
  if (get('sconce_requests_total').value > 0)
    add('late', 'Deadlines missed', late.value, '', (late.rate > 0 ? '▲ ' : '') + number(late.rate) + '/s', late.rate);
  total('sconce_train_steps_total', 'Training steps/s');
  total('sconce_env_steps_total', 'Environment steps/s');
  add('cpu', 'CPU', get('sconce_cpu_ratio').value, 'ratio', 'machine ' + measure(get('sconce_machine_cpu_ratio').value, 'ratio'));
  add('memory', 'Memory', get('sconce_memory_resident_bytes').value, 'bytes', measure(get('sconce_memory_available_bytes').value, 'bytes') + ' free');
  for (const m of data.metrics) {
    if (m.base !== 'sconce_device_utilisation_ratio') continue;
    const card = what => get(m.name.replace(m.base, 'sconce_device_' + what)).value;
    const beside = [[card('memory_used_bytes'), 'bytes'], [card('temperature_celsius'), 'C'], [card('power_watts'), 'W']];
    add('card ' + m.name, 'Card ' + (m.labels.device || ''), m.value, 'ratio', beside.filter(b => typeof b[0] === 'number').map(b => measure(...b))
      .concat(card('throttled') > 0 ? ['▲ throttled'] : []).join(' · '));
  }
  keyed($('tiles'), list, t => t.key, () => {
    const tile = el('div');
    tile.append(el('dt'), el('dd', 'value'), el('dd', 'beside'));
    tile.lastChild.append(el('div'), sparkline());
    return tile;
  }, (tile, t) => {
    const [label, value, beside] = tile.children;
    put(label, t.label); put(value, measure(t.value, t.unit)); put(beside.firstChild, t.beside || '');
    spark(beside.lastChild, 'tile ' + t.key, t.course, true);
  });
}

// Runs

function runs() {
  const list = data.runs, running = list.filter(r => r.state === 'running').length;
  put($('runs-count'), list.length ? running + ' running, ' + (list.length - running) + ' others' + (data.hidden ? ', ' + data.hidden + ' older not shown' : '') : '');
  put($('runs-error'), data.error || ''); show($('runs-error'), data.error);
  show($('runs-none'), !list.length && !data.error); show($('runs-table'), list.length);
  if (!list.some(r => r.id === chosen)) chosen = (list.find(r => r.state === 'running') || list[0] || {}).id || '';
  keyed(body('runs'), list, r => r.id, run => {
    const tr = row(['', '', '', 'number wide', 'number wide']), [id, state, progress] = tr.children;
    const button = el('button', '', run.id), bar = el('progress');
    button.type = 'button';
    bar.max = 1;
    bar.setAttribute('aria-label', 'Progress of ' + run.id);
    id.append(button, el('div', 'soft small wrap'));
    state.append(el('span', 'state'));
    progress.append(bar, el('div', 'small'));
    tr.addEventListener('click', () => choose(run.id));
    return tr;
  }, (tr, r) => {
    const [id, state, progress, loss, time] = tr.children, known = typeof r.share === 'number';
    tr.className = r.id === chosen ? 'run chosen' : 'run';
    id.firstChild.setAttribute('aria-pressed', String(r.id === chosen));
    put(id.lastChild, [r.kind, last(r.out)].filter(Boolean).join(' · '));
    state.firstChild.className = 'state ' + r.meaning;
    put(state.firstChild, mark(r.state));
    show(progress.firstChild, known);
    if (known) progress.firstChild.value = Math.min(Math.max(r.share, 0), 1);
    put(progress.lastChild, (known ? [measure(r.share, 'ratio'), number(r.step) + ' of ' + number(r.steps), typeof r.left === 'number' ? duration(r.left) + ' left' : ''] : ['step ' + number(r.step)]).filter(Boolean).join(' · '));
    put(loss, number(r.loss));
    put(time, duration(r.seconds));
  });
  detail(list.find(r => r.id === chosen));
}
function choose(id) {
  chosen = id; cursor = null;
  history.replaceState(null, '', '#' + id);
  runs();
}
function detail(run) {
  show($('chosen'), run); $('columns').classList.toggle('single', !run);
  if (!run) return;
  put($('chosen-title'), 'Run ' + run.id);
  put($('chosen-state'), mark(run.state));
  $('chosen-state').className = 'state ' + run.meaning;
  const quiet = run.state === 'DEAD' ? 'process gone (killed?), last figures at ' : run.state === 'SILENT' ? 'last figures at ' : '';
  put($('chosen-about'), [run.kind, run.out, run.command, 'pid ' + run.pid, run.host, quiet && quiet + clock(new Date(run.heartbeat))].filter(Boolean).join(' · '));
  const select = $('chosen-curve');
  keyed(select, run.curves, c => c.name, c => el('option', '', c.name), (option, c) => { option.value = c.name; });
  show($('chosen-label'), run.curves.length > 1);
  put($('chosen-note'), run.note ? 'note: ' + run.note : ''); put($('chosen-error'), run.error ? 'error: ' + run.error : '');
  curve(run.curves.find(c => c.name === select.value) || run.curves[0]);
  keyed($('figures'), run.figures, f => f.name, () => { const pair = el('div'); pair.append(el('dt'), el('dd')); return pair; },
    (pair, f) => { put(pair.firstChild, f.name); put(pair.lastChild, measure(f.value, f.unit)); });
}

// The learning curve

function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(n => n * power).find(s => s >= raw) || raw, list = [];
  for (let n = Math.ceil(low / step); n * step <= high && list.length < 12; n++) list.push(Number((n * step).toPrecision(12)));
  return list;
}
function curve(c) {
  const value = y => measure(y, c.unit);
  const node = $('curve'), width = node.clientWidth || 400, height = 220;
  drawn = c;
  show(node, c);
  if (!c) { put($('curve-text'), 'No curve yet.'); return; }
  const xs = c.points.map(p => p[0]), ys = c.points.map(p => p[1]);
  const first = Math.min(...xs), end = Math.max(...xs);
  let low = Math.min(...ys), high = Math.max(...ys);
  if (low === high) { low -= Math.abs(low) / 2 || 1; high += Math.abs(high) / 2 || 1; }
  const labels = ticks(low, high, 5), left = 12 + 6.4 * Math.max(...labels.map(t => value(t).length), 3), bottom = height - 20;
  const x = v => left + (width - left - 10) * (end > first ? (v - first) / (end - first) : 0.5), y = v => bottom - (bottom - 10) * (v - low) / (high - low);
  node.setAttribute('viewBox', '0 0 ' + width + ' ' + height);
  node.replaceChildren();
  for (const t of labels) {
    svg('line', {x1: left, x2: width - 10, y1: y(t), y2: y(t)}, node);
    svg('text', {x: left - 6, y: y(t) + 4, 'text-anchor': 'end'}, node).textContent = value(t);
  }
  for (const t of ticks(first, end, Math.max(width / 100, 4))) svg('text', {x: x(t), y: height - 4, 'text-anchor': 'middle'}, node).textContent = number(t);
  const line = c.points.map((p, n) => (n ? 'L' : 'M') + x(p[0]).toFixed(1) + ' ' + y(p[1]).toFixed(1)).join('');
  svg('path', {d: line + 'L' + x(end) + ' ' + bottom + 'L' + x(first) + ' ' + bottom + 'Z', class: 'area'}, node);
  svg('path', {d: line}, node);
  const at = cursor === null ? c.points.length - 1 : Math.min(cursor, c.points.length - 1), [px, py] = c.points[at];
  if (cursor !== null) svg('line', {class: 'cursor', x1: x(px), x2: x(px), y1: 6, y2: bottom}, node);
  svg('circle', {cx: x(px), cy: y(py), r: 3.5}, node);
  const lowest = c.points[ys.indexOf(Math.min(...ys))];
  const text = cursor === null
    ? c.name + ': ' + value(py) + ' at step ' + number(px) + ', lowest ' + value(lowest[1]) + ' at ' + number(lowest[0]) + ', first ' + value(ys[0])
    : c.name + ': ' + value(py) + ' at step ' + number(px);
  $('curve-text').setAttribute('aria-live', cursor === null ? 'off' : 'polite');
  put($('curve-text'), text);
  node.setAttribute('aria-label', 'Curve of ' + text + '. The arrow keys read its points.');
  node.place = p => Math.round((p - left) / (width - left - 10) * (end - first) + first);
}
function point(at) {
  if (!drawn) return;
  cursor = at === null ? null : Math.min(Math.max(at, 0), drawn.points.length - 1);
  curve(drawn);
}
$('curve').addEventListener('pointermove', event => {
  const node = $('curve'), at = node.place && node.place(event.clientX - node.getBoundingClientRect().left);
  if (drawn) point(drawn.points.reduce((best, p, n) => Math.abs(p[0] - at) < Math.abs(drawn.points[best][0] - at) ? n : best, 0));
});
$('curve').addEventListener('pointerleave', () => point(null));
$('curve').addEventListener('blur', () => point(null));
$('curve').addEventListener('keydown', event => {
  const by = {ArrowLeft: -1, ArrowRight: 1, PageUp: 10, PageDown: -10, Home: -1e9, End: 1e9}[event.key];
  if (event.key === 'Escape') point(null);
  if (!by || !drawn) return;
  event.preventDefault();
  point((cursor === null ? drawn.points.length - 1 : cursor) + by);
});
$('chosen-curve').addEventListener('change', () => { cursor = null; runs(); });

// Servings, sessions, metrics, VMs

// Sconce's own metrics with this label: an object for each of its values, with the metrics by their short names.
function labelled(label) {
  const by = new Map();
  for (const m of data.metrics) {
    const name = m.labels[label];
    if (m.app || name === undefined) continue;
    if (!by.has(name)) by.set(name, {name, labels: m.labels});
    by.get(name)[m.base.replace('sconce_' + label + '_', '')] = m;
  }
  return [...by.values()];
}
function servings() {
  const list = labelled('serving').sort((a, b) => a.name < b.name ? -1 : 1);
  show($('servings'), list.length);
  keyed(body('servings'), list, s => s.name, () => {
    const tr = row(['', 'number', 'number', 'number', 'number', 'number', 'number', 'course wide']);
    tr.children[1].append(el('div'), el('div', 'soft small'));
    tr.lastChild.append(sparkline());
    return tr;
  }, (tr, s) => {
    const value = (key, unit) => measure((s[key] || {}).value, unit || ''), rate = (s.requests_total || {}).rate;
    const late = (s.late_total || {}).value > 0 && s.late_total.rate > 0 ? '▲ ' : '';
    put(tr.firstChild, s.name);
    put(tr.children[1].firstChild, number(rate)); put(tr.children[1].lastChild, value('answered_total') + ' answered');
    [value('latency_p50_seconds', 's'), value('latency_p99_seconds', 's'), value('waiting'), late + value('late_total'), value('busy_total')]
      .forEach((text, n) => put(tr.children[n + 2], text));
    spark(tr.lastChild.firstChild, 'serving ' + s.name, rate, true);
  });
}
function sessions() {
  const list = labelled('session').sort((a, b) => a.name - b.name);
  show($('sessions'), list.length);
  keyed(body('sessions'), list, s => s.name, () => {
    const tr = row(['', 'number', 'number', 'number', 'number', 'course wide']);
    tr.firstChild.append(el('div'), el('div', 'soft small'));
    tr.lastChild.append(sparkline());
    return tr;
  }, (tr, s) => {
    const value = (key, unit) => measure((s[key] || {}).value, unit || ''), rate = (s.rate || {}).value;
    put(tr.firstChild.firstChild, s.name); put(tr.firstChild.lastChild, s.labels.policy + ' · ' + s.labels.owner);
    [number(rate), value('decisions_total'), value('time_seconds', 's'), value('late_total')]
      .forEach((text, n) => put(tr.children[n + 1], text));
    spark(tr.lastChild.firstChild, 'session ' + s.name, rate, true);
  });
}
// A table of all subjects with a label. `cells` returns the line below the name, the cells, and the value of the course.
function subjects(label, columns, cells) {
  const id = label + 's', list = labelled(label).sort((a, b) => a.name < b.name ? -1 : 1);
  show($(id), list.length);
  keyed(body(id), list, s => s.name, () => {
    const tr = row([''].concat(Array(columns).fill('number'), 'course wide'));
    tr.firstChild.append(el('div'), el('div', 'soft small'));
    tr.lastChild.append(sparkline());
    return tr;
  }, (tr, s) => {
    const [below, texts, course] = cells(s, (key, unit) => measure((s[key] || {}).value, unit || ''), key => (s[key] || {}).rate);
    put(tr.firstChild.firstChild, s.name); put(tr.firstChild.lastChild, below);
    texts.forEach((text, n) => put(tr.children[n + 1], text));
    spark(tr.lastChild.firstChild, label + ' ' + s.name, course, true);
  });
}
function leaders() {
  subjects('leader', 4, (s, value) => ['leads: ' + s.labels.leads,
    [(s.leading || {}).value ? '● leads' : 'follows', value('term'), value('granted') + ' of ' + value('members'), value('lease_seconds', 's')],
    (s.lease_seconds || {}).value]);
}
function stores() {
  subjects('store', 7, (s, value, rate) => ['',
    [number(rate('requests_total')), value('ram_bytes', 'bytes'), value('compressed_bytes', 'bytes'), value('disk_bytes', 'bytes'),
      value('hit_ratio', 'ratio'), value('prefetch_ratio', 'ratio'), ((s.damaged_total || {}).value > 0 ? '▲ ' : '') + value('damaged_total')],
    rate('requests_total')]);
}
function bots() {
  subjects('bot', 6, (s, value, rate) => ['',
    [number(rate('frames_total')), value('frames_total'), (rate('late_total') > 0 ? '▲ ' : '') + value('late_total'), value('neutral_total'),
      value('latency_p50_seconds', 's'), value('latency_p99_seconds', 's')],
    rate('frames_total')]);
}
function metrics(id, list) {
  keyed(body(id), list, m => m.name, () => {
    const tr = row(['', 'number', 'course wide']);
    tr.children[1].append(el('div'), el('div', 'soft small'));
    tr.firstChild.append(el('div'), el('div', 'soft small'));
      tr.lastChild.append(sparkline());
    return tr;
  }, (tr, m) => {
    const times = m.kind === 'histogram', value = m.value, unit = m.unit;
    put(tr.firstChild.firstChild, m.name);
    put(tr.firstChild.lastChild, m.doc || '');
    const shown = times ? number(value.count) : measure(value, unit);
    put(tr.children[1].firstChild, shown + (times ? ' values' : ['s', 'bytes', 'ratio', 'C', 'W', ''].includes(unit) ? '' : ' ' + unit));
    const rate = typeof m.rate === 'number' && m.rate > 0 ? number(m.rate) + '/s' : '';
    const latest = times && m.latest ? 'p50 ' + measure(m.latest.p50, unit) + ', p99 ' + measure(m.latest.p99, unit) : '';
    put(tr.children[1].lastChild, [rate, latest].filter(Boolean).join(' · '));
    spark(tr.lastChild.firstChild, 'metric ' + m.name, m.kind === 'gauge' ? value : m.rate, m.kind !== 'gauge');
  });
}
function vms() {
  show($('vms'), data.vms.length);
  keyed(body('vms'), data.vms, v => v.id, () => {
    const tr = row(['', '', 'number', 'number', 'number', 'number']);
    tr.firstChild.append(el('div'), el('div', 'soft small'));
    tr.children[1].append(el('span', 'state'));
    return tr;
  }, (tr, v) => {
    put(tr.firstChild.firstChild, v.id); put(tr.firstChild.lastChild, v.name || '');
    const state = tr.children[1].firstChild;
    state.className = 'state ' + v.meaning; put(state, mark(v.state));
    [measure(v.cpu, 'ratio'), measure(v.memory, 'bytes'), number(v.decisions), duration(v.seconds)].forEach((text, n) => put(tr.children[n + 2], text));
  });
}

// The page

function draw() {
  const vm = data.vm;
  document.title = (vm.name || 'VM ' + vm.id) + ' · Sconce';
  put($('name'), vm.name || 'VM ' + vm.id);
  put($('about'), [vm.host, 'pid ' + vm.pid, vm.command !== vm.name && vm.command, 'up ' + duration(vm.seconds)].filter(Boolean).join(' · '));
  put($('folder'), data.folder);
  tiles(); runs(); servings(); sessions(); leaders(); stores(); bots(); vms();
  const app = data.metrics.filter(m => m.app);
  show($('app'), app.length);
  metrics('app', app);
  if ($('own').open) metrics('own', data.metrics.filter(m => !m.app));
  for (const [key, points] of history_) if (points.seen < data.time - KEPT_MS) history_.delete(key);
}
function status(reason) {
  const lost = reason !== null, state = lost ? 'no answer' : data.vm.state;
  document.body.classList.toggle('gone', lost);
  $('state').className = 'state ' + (lost ? 'bad' : data.vm.meaning);
  put($('state'), lost ? '✕ ' + state : mark(state));
  put($('updated'), answered ? (lost ? 'last answer ' : 'updated ') + clock(answered) : '');
  show($('lost'), lost);
  if (lost) put($('lost'), (answered ? 'No answer since ' + clock(answered) + '. These are the last figures.' : 'No answer yet.') + reason);
}
async function ask() {
  const answer = await fetch('monitor.json', {cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS)});
  if (!answer.ok) throw new Error(answer.status + ': ' + (await answer.text()).slice(0, 200));
  return answer.json();
}
async function poll() {
  clearTimeout(timer);
  if (document.hidden || busy) return;
  busy = true;
  const began = performance.now();
  try {
    const next = await ask();
    if (data && data.vm.pid !== next.vm.pid) history_.clear();
    data = next; answered = new Date();
    status(null);
  } catch (error) {
    status(/^\d{3}:/.test(error.message) ? ' (' + error.message.trim() + ')' : '');
    busy = false;
    timer = setTimeout(poll, EVERY_MS);
    return;
  }
  try { draw(); } finally {
    busy = false;
    timer = setTimeout(poll, Math.max(EVERY_MS - (performance.now() - began), 100));
  }
}
document.addEventListener('visibilitychange', poll);
$('own').addEventListener('toggle', () => data && draw());
addEventListener('resize', () => drawn && curve(drawn));
poll();
