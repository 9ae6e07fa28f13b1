// The space-time diagram: a line for each process, time to the right, a slanted line for each message. Only what is in
// view is drawn, so that a window of thousands of events stays quick.
//
// A line is dashed where events of its process are not on this page: `index` has no gaps, so a jump in it tells. A
// message whose other end is not here ends in a dotted stub.

const SEND = 0, RECEIVE = 1, DELIVER = 2;
const LONG = 40;
const MANY = 24;
const models = new Map();

function modelOf(run) {
  if (models.has(run)) return models.get(run);
  const {process, index, kind, message} = run.table, {sender, number, control, to, sets, alias} = run.messages;
  const grown = steps => { let x = 0; return steps.map(step => (x += Number(step))); };
  const names = DATA.names[run.names], label = shared(names);
  const model = {process, index, kind, message, names, time: grown(run.table.time), clock: run.table.clock && grown(run.table.clock),
    send: sender.map(() => -1), arrivals: sender.map(() => []), own: names.map(() => []), held: kind.map(() => false),
    to: to.map(set => set < 0 ? null : sets[set]), control: message.map(m => control[m]),
    name: m => `${short(names[sender[m]], LONG)}.${number[m]}`, brief: m => `${label(names[sender[m]], 8)}.${number[m]}`, sender, label};
  // Spans have names and ids of their own: those are what their owner looks for.
  if (alias) {
    const whose = m => `${short(alias[m][0] || 'a message', LONG)} of ${short(names[sender[m]], LONG)}`;
    const own = model.name, few = model.brief;
    Object.assign(model, {id: m => alias[m] && alias[m][1], name: m => alias[m] ? whose(m) : own(m),
      brief: m => alias[m] && alias[m][0] ? short(alias[m][0], 14) : few(m)});
  }
  kind.forEach((k, e) => {
    if (k === SEND) model.send[message[e]] = e; else model.arrivals[message[e]].push(e);
    model.own[process[e]].push(e);
  });
  for (const own of model.own) {
    own.sort((a, b) => index[a] - index[b]);
    // Held: received, and something else happened before its delivery; control packets are nothing here.
    own.filter(e => !model.control[e]).forEach((e, i, words) => {
      const next = words[i + 1];
      model.held[e] = kind[e] === RECEIVE && !(known(next) && kind[next] === DELIVER && message[next] === message[e]);
    });
  }
  models.set(run, model);
  return model;
}

// The events that tell a finding, in causal order, and the finding in words.

function storyOf(model, finding) {
  const at = (m, process, kind) => model.arrivals[m].find(e => model.process[e] === process && model.kind[e] === kind);
  const path = [];
  finding.path.forEach((m, i) => {
    const next = finding.path[i + 1], knows = known(next) ? model.sender[next] : finding.at;
    path.push(model.send[m]);
    if (known(next) ? knows !== model.sender[m] : finding.by !== null) path.push(at(m, knows, DELIVER));
  });
  const late = finding.index === null ? undefined : model.own[finding.at].find(e => model.index[e] === finding.index);
  const there = path.filter(e => known(e) && e >= 0);
  const held = finding.path.map(m => at(m, finding.at, RECEIVE)).filter(e => known(e) && model.held[e]);
  return {path: there, late, events: new Set([...there, ...held, ...(known(late) ? [late] : [])]),
    processes: new Set([...finding.path.map(m => model.sender[m]), finding.at]), whole: there.length === path.length};
}
function sayFinding(model, finding) {
  const at = short(model.names[finding.at], LONG), m = model.name(finding.message), by = finding.by === null ? '' : model.name(finding.by);
  switch (finding.kind) {
    case 'violation': return model.id ? `${at} was handed ${m} after ${by}, which follows from it`
      : `${at} delivered ${m} after ${by}, which it causally precedes: ${finding.path.map(model.name).join(' → ')}`;
    case 'fifo_break': return `${at} delivered ${m} after ${by}, which its sender sent later`;
    case 'duplicate': return `${at} delivered ${m} again`;
    case 'unsent': return `${at} delivered ${m}, which nobody sent`;
    case 'unaddressed': return `${at} delivered ${m}, which was not addressed to it`;
    default: return `${at} never delivered ${m}, which was addressed to it`;
  }
}

function sayEvent(run, model, e, role) {
  const m = model.message[e], names = model.names, process = short(names[model.process[e]], LONG);
  const what = model.control[e] ? `control packet ${model.name(m)}` : model.name(m);
  const verb = ['sends', model.control[e] || !model.held[e] ? 'receives' : 'receives and holds', 'delivers'][model.kind[e]];
  const lines = [`${process} ${verb} ${what}`];
  if (role) lines.push(role);
  if (model.id && model.id(m)) lines.push(`span ${model.id(m).split(':')[1]}`, `trace ${model.id(m).split(':')[0]}`);
  const to = model.to[m];
  if (model.kind[e] === SEND && to) lines.push(`to ${to.slice(0, 6).map(q => short(names[q], 30)).join(', ')}${to.length > 6 ? ` and ${to.length - 6} more` : ''}`);
  lines.push(`at ${instant(model.time[e], 1e5)} · event ${count(Number(model.index[e]))} of ${process}${model.clock ? ` · clock ${count(model.clock[e])}` : ''}`);
  const sent = model.send[m];
  if (model.kind[e] !== SEND) lines.push(sent >= 0 ? `${time(model.time[e] - model.time[sent])} after its send` : 'its send is not on this page');
  const {entries, bytes: sizes, label} = run.table;
  if (sizes && known(sizes[e])) lines.push(`stamp: ${entries && known(entries[e]) ? `${plural(entries[e], 'entry', 'entries')}, ` : ''}${bytes(sizes[e])}`);
  if (label && known(label[e])) lines.push(`label ${label[e]}`);
  return lines.join('\n');
}

class Diagram {
  constructor(host, moved) {
    this.host = host;
    this.moved = moved;
    this.axis = 'order';
    this.rows = 'all';
    this.control = false;
    this.cursor = null;
    host.addEventListener('pointerdown', event => this.grab(event));
    host.addEventListener('wheel', event => this.wheel(event), {passive: false});
    host.addEventListener('keydown', event => this.key(event));
    host.addEventListener('focus', () => { if (host.matches(':focus-visible')) this.step(0); });
    let width = host.clientWidth;
    // A host without width is gone, or hidden: another run is shown.
    new ResizeObserver(() => { if (host.clientWidth && host.clientWidth !== width) { width = host.clientWidth; this.paint(); } }).observe(host);
  }

  show(run, finding) {
    this.run = run;
    this.model = modelOf(run);
    this.finding = finding || null;
    this.story = finding ? storyOf(this.model, finding) : null;
    this.rows = finding ? 'involved' : 'all';
    this.cursor = finding && known(this.story.late) ? this.story.late : null;
    this.layout();
    // A story that spans hundreds of events is told without them first.
    if (finding && this.span() > 60) { this.rows = 'story'; this.layout(); }
    this.fit();
  }

  // Which events are drawn, in which rows, at which x: their rank, or their time.
  layout() {
    const {process, kind, held, control, time} = this.model, story = this.story;
    const rows = this.rows === 'all' || !story ? this.model.names.map((_, p) => p) : [...story.processes];
    this.place(rows);
    this.drawn = [];
    process.forEach((p, e) => {
      const kept = control[e] ? this.control : kind[e] !== RECEIVE || held[e];
      if ((kept && this.row.has(p) && (this.rows !== 'story' || !story || story.events.has(e))) || (story && story.events.has(e))) this.drawn.push(e);
    });
    this.x = new Map(this.drawn.map((e, i) => [e, this.axis === 'order' ? i : time[e]]));
  }
  place(processes) {
    this.lines = processes.sort((a, b) => a - b);
    this.row = new Map(this.lines.map((p, i) => [p, i]));
  }
  has(e) { return this.x.has(e) && this.row.has(this.model.process[e]); }
  span() {
    const at = [...this.story.events].map(e => this.x.get(e)).filter(known);
    return at.length ? Math.max(...at) - Math.min(...at) : 0;
  }
  extent(events) {
    const at = events.map(e => this.x.get(e)).filter(known);
    return at.length ? [Math.min(...at), Math.max(...at)] : [0, 1];
  }
  least() { return this.axis === 'order' ? 4 : 10; }

  // Show these events with a little room at both ends.
  fit(events) {
    const few = this.drawn.slice(0, Math.max(12, Math.floor(this.host.clientWidth / 24)));
    const [a, b] = this.extent(events || (this.story && this.story.events.size ? [...this.story.events] : few));
    const room = Math.max((b - a) * 0.06, this.axis === 'order' ? 0.8 : 1);
    this.look(a - room, b + room);
  }
  look(a, b) {
    const [first, last] = this.extent(this.drawn), room = Math.max(1, (last - first) * 0.05);
    // Beyond a thousand events dots are a smear; the overview shows those better.
    const most = this.axis === 'order' ? Math.min(last - first, 1000) : last - first;
    const width = clamp(b - a, this.least(), Math.max(this.least(), most + 2 * room));
    const middle = clamp((a + b) / 2, first - room + Math.min(width / 2, last - first), Math.max(first, last + room - width / 2));
    this.from = middle - width / 2;
    this.to = middle + width / 2;
    this.paint();
  }
  zoom(by, at = (this.from + this.to) / 2) { this.look(at - (at - this.from) * by, at + (this.to - at) * by); }
  pan(share) { const step = (this.to - this.from) * share; this.look(this.from + step, this.to + step); }
  change(setting) {
    const here = this.visible();
    Object.assign(this, setting);
    this.layout();
    if (setting.axis || setting.rows) this.fit(this.story ? null : here); else this.paint();
  }
  visible() { return this.drawn.filter(e => this.x.get(e) >= this.from && this.x.get(e) <= this.to); }
  // The event of that time, if there is one on the page nearby.
  find(a, b) {
    this.rows = 'all';
    this.layout();
    const here = this.drawn.filter(e => this.model.time[e] >= a && this.model.time[e] <= b);
    if (here.length) this.fit(here.slice(0, 60)); else this.paint();
    return here.length;
  }

  // Pointer, wheel and keys.

  grab(event) {
    if (event.button || event.target.closest('.event')) return;
    const start = event.clientX, {from, to} = this, width = this.width;
    const move = now => { const step = (start - now.clientX) / width * (to - from); this.look(from + step, to + step); };
    const drop = () => { removeEventListener('pointermove', move); removeEventListener('pointerup', drop); removeEventListener('pointercancel', drop); };
    addEventListener('pointermove', move);
    addEventListener('pointerup', drop);
    addEventListener('pointercancel', drop);
  }
  wheel(event) {
    // The wheel alone belongs to the page.
    if (event.ctrlKey || event.metaKey) {
      const box = this.host.getBoundingClientRect(), share = (event.clientX - box.left - this.gutter) / this.width;
      this.zoom(Math.exp(clamp(event.deltaY, -50, 50) / 100), this.from + share * (this.to - this.from));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / this.width);
    else return;
    event.preventDefault();
  }
  key(event) {
    const act = {ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1), ArrowDown: () => this.step(0, 1), ArrowUp: () => this.step(0, -1),
      Enter: () => this.follow(), '+': () => this.zoom(0.6), '=': () => this.zoom(0.6), '-': () => this.zoom(1 / 0.6), 0: () => this.fit(),
      PageDown: () => this.pan(0.8), PageUp: () => this.pan(-0.8), Home: () => this.go(this.drawn[0]), End: () => this.go(this.drawn[this.drawn.length - 1])}[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }
  // To the next event of the process, or to the nearest one of the next process.
  step(along, across = 0) {
    const {process} = this.model, here = this.visible();
    if (this.cursor === null || !this.x.has(this.cursor)) this.cursor = here[0] ?? this.drawn[0] ?? null;
    else if (along) {
      const own = this.drawn.filter(e => process[e] === process[this.cursor]);
      this.cursor = own[own.indexOf(this.cursor) + along] ?? this.cursor;
    } else if (across) {
      for (let row = this.row.get(process[this.cursor]) + across; row >= 0 && row < this.lines.length; row += across) {
        const own = this.drawn.filter(e => process[e] === this.lines[row]);
        if (!own.length) continue;
        const at = this.x.get(this.cursor);
        this.cursor = own.reduce((a, b) => Math.abs(this.x.get(b) - at) < Math.abs(this.x.get(a) - at) ? b : a);
        break;
      }
    }
    if (this.cursor !== null) this.go(this.cursor);
  }
  // From a send to its arrival, from an arrival to the send.
  follow() {
    if (this.cursor === null) return;
    const m = this.model.message[this.cursor];
    const other = this.model.kind[this.cursor] === SEND ? this.model.arrivals[m].find(e => this.x.has(e)) : this.model.send[m];
    if (this.x.has(other)) this.go(other);
  }
  go(e) {
    if (!known(e)) return;
    this.cursor = e;
    const at = this.x.get(e), half = (this.to - this.from) / 2;
    if (at < this.from || at > this.to) this.look(at - half, at + half); else this.paint();
    const node = this.host.querySelector('.cursor');
    if (node && this.host.contains(document.activeElement)) {
      const box = node.getBoundingClientRect();
      tell(node, box.right, box.bottom);
      this.host.setAttribute('aria-label', `Space-time diagram. ${node.tip().replaceAll('\n', ', ')}`);
    }
  }

  // Paint what is in view.

  role(e) {
    const {finding, story, model} = this;
    if (!finding) return '';
    if (e === story.late && model.kind[e] === DELIVER) return 'late';
    if (model.control[e]) return '';
    const m = model.message[e];
    if (!story.events.has(e)) return '';
    return m === finding.message ? 'overtaken' : m === finding.by ? 'by' : finding.path.includes(m) ? 'chain' : '';
  }
  px(e) { return this.gutter + (this.x.get(e) - this.from) / (this.to - this.from) * this.width; }
  py(e) { return this.yOf(this.model.process[e]); }
  yOf(p) { return 26 + this.gap * (this.row.get(p) + 0.5); }

  paint() {
    if (!this.run) return;
    const full = this.host.clientWidth, names = this.model.names;
    // Of many processes, those to which nothing happens in view would push the others out of it.
    if (this.rows === 'all' && names.length > MANY) this.place(unique(this.visible().map(e => this.model.process[e])));
    const longest = Math.max(1, ...this.lines.map(p => [...names[p]].length));
    const letters = Math.min(longest, full < 520 ? 8 : 18);
    this.gutter = letters * 8 + 26;
    this.width = Math.max(60, full - this.gutter - 26);
    this.gap = this.lines.length <= 12 ? 52 : this.lines.length <= 40 ? 30 : 17;
    const height = 26 + this.gap * this.lines.length + 30;
    const margin = (this.to - this.from) * 0.5;
    const near = e => this.has(e) && this.x.get(e) >= this.from - margin && this.x.get(e) <= this.to + margin;
    const nodes = this.drawn.filter(near);
    this.named = this.namesOf(nodes);
    const inside = draw('g', {'clip-path': 'url(#plot)'}, this.lifelines(), this.chainLine(), this.edges(nodes), nodes.map(e => this.glyph(e)));
    const picture = draw('svg', {width: full, height, viewBox: `0 0 ${full} ${height}`, class: 'spacetime'},
      draw('defs', {}, draw('clipPath', {id: 'plot'}, draw('rect', {x: this.gutter - 6, y: 0, width: this.width + 32, height})),
        ['', 'overtaken', 'by', 'chain', 'faint'].map(name => draw('marker', {id: `arrow-${name}`, class: `arrow ${name}`, viewBox: '0 0 8 8', refX: 13, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto', markerUnits: 'userSpaceOnUse'}, draw('path', {d: 'M0 1 8 4 0 7z'})))),
      this.ticks(height),
      this.lines.map(p => draw('text', {class: 'process', x: this.gutter - 14, y: this.yOf(p), 'dominant-baseline': 'middle', 'text-anchor': 'end', 'data-tip': names[p]}, this.model.label(names[p], letters))),
      inside);
    this.host.replaceChildren(picture);
    if (!this.drawn.length) this.host.replaceChildren(empty('No events of this run are on this page.'));
    const seen = this.visible().map(e => this.model.time[e]);
    if (seen.length) this.moved(Math.min(...seen), Math.max(...seen), seen.length, this.lines.length);
  }

  lifelines() {
    const {model} = this, left = this.gutter - 6, right = this.gutter + this.width + 26;
    return this.lines.map(p => {
      const y = this.yOf(p), pieces = [draw('line', {class: 'life', x1: left, x2: right, y1: y, y2: y})];
      const gap = (a, b) => { if (b > left && a < right) pieces.push(draw('line', {class: 'life missing', x1: Math.max(a, left), x2: Math.min(b, right), y1: y, y2: y})); };
      const own = model.own[p], at = e => this.px(this.nearest(e));
      if (!own.length) { if (!this.run.whole) gap(left, right); return draw('g', {}, pieces); }
      if (model.index[own[0]] > 0) gap(left, at(own[0]));
      for (let i = 1; i < own.length; i++) if (model.index[own[i]] - model.index[own[i - 1]] > 1) gap(at(own[i - 1]), at(own[i]));
      if (!this.run.whole) gap(at(own[own.length - 1]), right);
      return draw('g', {}, pieces);
    });
  }
  // An event that is not drawn stands where the last drawn one before it does.
  nearest(e) {
    let low = 0, high = this.drawn.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (this.drawn[middle] <= e) low = middle; else high = middle - 1; }
    return this.drawn[low];
  }

  chainLine() {
    if (!this.finding || this.finding.by === null) return null;
    const points = [...this.story.path, this.story.late].filter(e => known(e) && this.has(e)).map(e => `${this.px(e)},${this.py(e)}`);
    return draw('polyline', {class: 'path', points: points.join(' ')});
  }

  edges(nodes) {
    const {model} = this, lines = [], seen = new Set();
    const stub = (e, dx, dy, role) => lines.push(draw('line', {class: `edge stub ${role}`, x1: this.px(e), y1: this.py(e), x2: this.px(e) + dx, y2: this.py(e) + dy}));
    for (const e of nodes) {
      const m = model.message[e];
      if (seen.has(m)) continue;
      seen.add(m);
      const sent = this.has(model.send[m]) ? model.send[m] : null, met = new Map();
      for (const arrival of model.arrivals[m]) {
        if (!this.has(arrival)) continue;
        const p = model.process[arrival], first = met.get(p);
        if (known(first)) { if (model.kind[first] === RECEIVE) lines.push(this.wait(first, arrival)); continue; }
        met.set(p, arrival);
        if (sent === null) stub(arrival, -16, p > model.sender[m] ? -13 : 13, this.role(arrival));
        else if (p !== model.process[sent]) lines.push(this.edge(sent, arrival));
      }
      const missing = (sent === null ? [] : model.to[m] || []).filter(p => this.row.has(p) && !met.has(p) && p !== model.process[sent]);
      // Stubs of a message to hundreds would hide it: they are drawn while they tell something.
      if (this.rows !== 'story' && missing.length <= 12) for (const p of missing) stub(sent, 16, p > model.process[sent] ? 13 : -13, '');
    }
    return draw('g', {}, lines);
  }
  edge(sent, arrival) {
    const control = this.model.control[sent], late = arrival === this.story?.late || (this.model.kind[arrival] === RECEIVE && this.role(arrival) === 'overtaken');
    const role = control ? 'faint' : late ? 'overtaken' : this.role(arrival) && this.role(sent) ? (this.role(sent) === 'overtaken' ? 'chain' : this.role(sent)) : this.finding ? 'faint' : '';
    return draw('line', {class: `edge ${role}${control ? ' control' : ''}`, x1: this.px(sent), y1: this.py(sent), x2: this.px(arrival), y2: this.py(arrival), 'marker-end': `url(#arrow-${role})`});
  }
  // Which events get their message's name, and on which side: those of a finding, the late one first, and others where there is room.
  namesOf(nodes) {
    const taken = new Map(), named = new Map(), roles = ['late', 'overtaken', 'by', 'chain'];
    const told = roles.flatMap(role => nodes.filter(e => this.role(e) === role));
    const rest = this.finding || this.gap < 20 ? [] : nodes.filter(e => !this.model.control[e]);
    for (const e of [...told, ...rest]) {
      if (named.has(e)) continue;
      const half = this.halfName(e), x = this.px(e) + this.shift(e), own = this.side(e);
      const side = (this.role(e) ? [own, -own] : [own]).find(side => {
        const others = taken.get(`${this.model.process[e]} ${side}`) || [];
        return !others.some(([a, b]) => x - half < b && x + half > a);
      });
      if (!known(side)) continue;
      const place = `${this.model.process[e]} ${side}`;
      taken.set(place, [...(taken.get(place) || []), [x - half, x + half]]);
      named.set(e, side);
    }
    return named;
  }
  halfName(e) { return this.model.brief(this.model.message[e]).length * 3.5 + 2; }
  // A name at the left edge begins there, and is not cut.
  shift(e) {
    const room = this.px(e) - (this.gutter - 6);
    return room < 0 ? 0 : Math.max(0, this.halfName(e) - room);
  }
  // Names stand on the side where the message's own line is not.
  side(e) {
    const {model} = this, m = model.message[e], own = this.row.get(model.process[e]);
    const other = model.kind[e] === SEND ? (model.to[m] || []).map(p => this.row.get(p)).find(row => known(row) && row !== own) : this.row.get(model.sender[m]);
    return known(other) && other < own ? 1 : -1;
  }
  wait(from, to) {
    const a = this.px(from), b = this.px(to), y = this.py(from);
    return draw('path', {class: 'held', d: `M${a} ${y}C${a + 6} ${y + 15} ${b - 6} ${y + 15} ${b} ${y}`});
  }

  glyph(e) {
    const {model} = this, role = this.role(e), kind = model.kind[e], x = this.px(e), y = this.py(e);
    const faint = this.finding && !role ? ' faint' : '', size = this.gap < 20 ? 3.2 : 5;
    let sign;
    if (role === 'late') sign = [draw('circle', {r: size + 3.5, class: 'ring'}), draw('path', {class: 'cross', d: 'M-4-4 4 4M-4 4 4-4'})];
    else if (model.control[e]) sign = draw('path', {class: 'diamond', d: 'M0-3.5 3.5 0 0 3.5-3.5 0z'});
    else sign = draw('circle', {r: size, class: ['sent', 'received', 'delivered'][kind]});
    const words = {late: 'delivered too late: the overtaken message', overtaken: 'the overtaken message', by: 'the message that overtook it', chain: 'on the chain between them'}[role];
    const node = draw('g', {class: `event ${role}${faint}${e === this.cursor ? ' cursor' : ''}`, transform: `translate(${x.toFixed(1)} ${y})`, 'data-event': e, 'data-tip': ''},
      draw('circle', {class: 'target', r: 9}), sign,
      this.named.has(e) ? draw('text', {x: this.shift(e), y: this.named.get(e) < 0 ? -11 : 18, 'text-anchor': 'middle'}, model.brief(model.message[e])) : null);
    node.tip = () => sayEvent(this.run, model, e, words);
    node.addEventListener('click', () => { this.cursor = e; this.paint(); });
    return node;
  }

  ticks(height) {
    const here = this.visible(), times = here.map(e => this.model.time[e]), span = here.length ? Math.max(...times) - Math.min(...times) : 1;
    const many = Math.max(2, Math.floor(this.width / 120)), marks = [];
    let said = '';
    // Of events at the same time, the first says it.
    const mark = (x, t) => {
      const words = instant(t, span / many, Math.max(...times));
      marks.push(draw('line', {class: 'tickmark', x1: x, x2: x, y1: 14, y2: height - 26}),
        draw('text', {class: 'tick', x, y: height - 9, 'text-anchor': 'middle'}, words === said ? '' : words));
      said = words;
    };
    // By order, times grow unevenly: each tick stands at an event and tells its time.
    let last = -Infinity;
    if (this.axis === 'order') for (const e of here) { if (this.px(e) - last >= this.width / many) mark(last = this.px(e), this.model.time[e]); }
    else {
      const rough = (this.to - this.from) / many, power = 10 ** Math.floor(Math.log10(rough)), step = power * [1, 2, 5, 10].find(k => k * power >= rough);
      for (let t = Math.ceil(Math.max(0, this.from) / step) * step; t <= this.to; t += step) mark(this.gutter + (t - this.from) / (this.to - this.from) * this.width, t);
    }
    return draw('g', {class: 'ticks'}, marks);
  }
}
