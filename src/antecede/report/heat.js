// Where the events of a run are, by process and time; and who sends how much to whom. A cell is as strong as its count.

function heatmap({columns, rows, values, share = () => 1, label, tip, pick}) {
  // A cell that stands for more processes than its neighbour is no stronger for that.
  const strengths = values.map((value, i) => value / share(i % columns, Math.floor(i / columns)));
  const most = Math.max(...strengths, 1e-9);
  // Few cells stand apart; many would show seams.
  const cells = [], size = columns <= FEW ? 0.98 : 1.03;
  strengths.forEach((value, i) => {
    // The root, because a channel with a hundredth of the traffic should still be seen.
    if (value > 0) cells.push(draw('rect', {x: i % columns, y: Math.floor(i / columns), width: size, height: size, 'fill-opacity': (0.12 + 0.88 * Math.sqrt(value / most)).toFixed(3)}));
  });
  const picture = draw('svg', {class: 'heat', viewBox: `0 0 ${columns} ${rows}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label, 'data-tip': ''},
    draw('g', {}, cells));
  const at = (x, y) => {
    const box = picture.getBoundingClientRect();
    return [clamp(Math.floor((x - box.left) / box.width * columns), 0, columns - 1), clamp(Math.floor((y - box.top) / box.height * rows), 0, rows - 1)];
  };
  picture.tip = (x, y) => tip(...at(x, y));
  if (pick) picture.addEventListener('click', event => pick(...at(event.clientX, event.clientY)));
  return picture;
}

// Few rows or columns have each its name; of many, the first and the last have.
const FEW = 6;
function namesAlong(kind, names, label, word) {
  const spans = names.length <= FEW ? names.map(name => el('span', {title: name}, label(name, 12))) : [el('span', {}, label(names[0], 12)), word ? el('span', {class: 'muted'}, word) : null, el('span', {}, label(names[names.length - 1], 12))];
  return el('div', {class: names.length <= FEW ? `${kind} each` : kind}, spans);
}

// Bands are what fits: with more processes than rows, a row is several neighbours.
function bandName(names, n, bands, band) {
  const first = Math.ceil(band * n / bands), last = Math.ceil((band + 1) * n / bands) - 1;
  return first >= last ? short(names[first], 40) : `${short(names[first], 24)} to ${short(names[last], 24)}`;
}
const bandSize = (n, bands, band) => Math.ceil((band + 1) * n / bands) - Math.ceil(band * n / bands);
const bandOf = (process, n, bands) => Math.min(bands - 1, Math.floor(process * bands / n));

// A run that is here as a whole counts its own events.
function densityOf(run, model) {
  if (run.density) return run.density;
  const size = model.process.length, bands = Math.min(run.n, 48), buckets = 96;
  if (!size || !bands) return null;
  const span = Math.max(...model.time, 0), counts = new Array(bands * buckets).fill(0);
  for (let i = 0; i < size; i++) {
    if (model.process[i] >= run.n) continue;
    const bucket = span ? Math.min(buckets - 1, Math.floor(model.time[i] / span * buckets)) : 0;
    counts[bandOf(model.process[i], run.n, bands) * buckets + bucket]++;
  }
  return {span, buckets, bands, counts};
}

function overview(run, model, pick) {
  const density = densityOf(run, model);
  if (!density) return {node: empty('This run has no events.'), mark() {}};
  const {span, buckets, bands, counts} = density, names = model.names;
  const start = bucket => bucket / buckets * span;
  const picture = heatmap({
    columns: buckets, rows: bands, values: counts, share: (_, band) => bandSize(run.n, bands, band), label: 'Events by process and time',
    tip: (bucket, band) => `${bandName(names, run.n, bands, band)}\n${time(start(bucket))} to ${time(start(bucket + 1))}: ${plural(counts[band * buckets + bucket], 'event')}`,
    pick: bucket => pick(start(bucket), start(bucket + 1), sum(counts.filter((_, i) => i % buckets === bucket))),
  });
  const share = t => `${span ? clamp(t / span * 100, 0, 100) : 0}%`;
  const width = (a, b) => `max(3px, ${span ? clamp((b - a) / span * 100, 0, 100) : 100}%)`;
  const ranges = run.whole ? [] : run.windows.map(({title, first, last}) => el('i', {class: 'range', 'data-tip': title,
    style: `left:${share(model.time[first])};width:${width(model.time[first], model.time[last])}`}));
  const view = el('i', {class: 'view'});
  const node = el('div', {class: 'overview', style: `--rows:${bands}`},
    namesAlong('y', names.slice(0, run.n), model.label),
    el('div', {class: 'plot'}, picture, view, el('div', {class: 'ranges'}, ranges)),
    el('div', {class: 'axis'}, el('span', {}, '0 s'), el('span', {}, time(span / 2)), el('span', {}, time(span))));
  return {node, mark(a, b) { view.style.left = share(a); view.style.width = width(a, b); }};
}

function channelMap(run, {names, label}) {
  const {bands, messages, delay_ns_mean: delays} = run.channels;
  const name = band => bandName(names, run.n, bands, band), size = band => bandSize(run.n, bands, band);
  const tip = (receiver, sender) => {
    const at = sender * bands + receiver;
    return `${name(sender)} → ${name(receiver)}\n${plural(messages[at], 'message')}${known(delays[at]) ? `\ndelay ${time(delays[at])} on average` : ''}`;
  };
  const node = el('div', {});
  const fill = what => node.replaceChildren(el('div', {class: 'channels'},
    namesAlong('y', names.slice(0, run.n), label, 'from'),
    heatmap({columns: bands, rows: bands, values: what === 'messages' ? messages : delays.map(x => x || 0), label: `${what} by channel`, tip,
      share: (receiver, sender) => what === 'messages' ? size(sender) * size(receiver) : 1}),
    namesAlong('axis', names.slice(0, run.n), label, 'to')),
    el('div', {class: 'scale'}, el('span', {}, '0'), el('i'), el('span', {}, what === 'messages' ? plural(Math.max(...messages), 'message') : time(Math.max(...delays.map(x => x || 0))))));
  fill('messages');
  const choices = [['messages', 'Messages'], ...(delays.some(known) ? [['delay', 'Mean delay']] : [])];
  return el('div', {}, el('p', {class: 'muted small'}, 'A row is a sender, a column a receiver.'), el('div', {class: 'controls'}, segmented('Shown', choices, 'messages', fill)), node);
}
