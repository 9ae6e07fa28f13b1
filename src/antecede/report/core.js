// Elements, figures and the one tooltip. Elements are made by name and given text: nothing here or in the other
// files parses HTML, so no name out of a log can become markup.

const DATA = JSON.parse(document.getElementById('data').textContent);
const SVG = 'http://www.w3.org/2000/svg';
const $ = id => document.getElementById(id);

function put(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(2).filter(child => child !== null && child !== undefined));
  return node;
}
const el = (tag, attributes, ...children) => put(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => put(document.createElementNS(SVG, tag), attributes, children);

const unique = values => [...new Set(values)];
const sum = values => values.reduce((a, b) => a + b, 0);
const clamp = (x, low, high) => Math.max(low, Math.min(high, x));
const known = x => x !== null && x !== undefined;

// A log may have no times.
for (const run of DATA.runs) run.untimed = Boolean(run.price) && !run.price.duration_ns;

// Figures: three digits say enough, and every figure says its unit.

const whole = new Intl.NumberFormat('en');
const count = x => known(x) ? whole.format(x) : '–';
const plural = (x, one, many) => `${count(x)} ${x === 1 ? one : many || one + 's'}`;

function figure(x) {
  if (!known(x)) return '–';
  const size = Math.abs(x);
  if (size >= 1e6) return `${digits(x / 1e6)} M`;
  if (size >= 1e4) return `${digits(x / 1e3)} k`;
  return digits(x);
}
function digits(x) {
  const size = Math.abs(x);
  const places = size >= 100 || Number.isInteger(x) ? 0 : size >= 10 ? 1 : size >= 0.095 || x === 0 ? 2 : 3;
  return whole.format(Number(x.toFixed(places)));
}
function scaled(x, units) {
  if (!known(x)) return '–';
  const [size, unit] = units.find(([size]) => Math.abs(x) >= size) || units[units.length - 1];
  return `${digits(x / size)} ${unit}`;
}
const time = ns => ns === 0 ? '0 s' : scaled(ns, [[60e9, 'min'], [1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']]);
// A moment among others: as many digits as it takes to tell it from its neighbours, in the unit of the last of them.
function instant(ns, span, last = ns) {
  if (!ns) return '0';
  const [size, unit] = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs']].find(([size]) => Math.abs(last) >= size) || [1, 'ns'];
  const places = clamp(2 - Math.floor(Math.log10(Math.max(span, 1) / size)), 0, Math.round(Math.log10(size)));
  return `${(ns / size).toLocaleString('en', {maximumFractionDigits: places})} ${unit}`;
}
const bytes = x => scaled(x, [[1e9, 'GB'], [1e6, 'MB'], [1e4, 'kB'], [1, 'B']]);
const percent = x => known(x) ? `${digits(x * 100)} %` : '–';

// A description such as zones:lan=1ms,wan=50ms breaks after its signs, not in a word.
const breakable = text => known(text) ? String(text).split(/(?<=[:,])/).flatMap((part, i) => i ? [el('wbr'), part] : [part]) : text;

// Names may be of any length. The middle goes: names of processes mostly differ at their ends.
function short(name, most) {
  const signs = [...name];
  if (signs.length <= most) return name;
  const head = Math.ceil((most - 1) / 2);
  return signs.slice(0, head).join('') + '…' + signs.slice(signs.length - (most - 1 - head)).join('');
}

// What all names begin and end with tells none of them apart: it goes first.
function shared(names) {
  const [first = '', ...rest] = names;
  let head = 0, tail = 0;
  while (head < first.length && rest.every(name => name[head] === first[head])) head++;
  while (tail < first.length - head && rest.every(name => name.length - tail > head && name[name.length - 1 - tail] === first[first.length - 1 - tail])) tail++;
  return (name, most) => name.length <= most || !rest.length ? short(name, most) : short(name.slice(head, name.length - tail) || name, most);
}

// Anything with `data-tip`, or a function `tip`, tells it on hover and on focus.

const tipBox = $('tip');
function tell(node, x, y) {
  const text = node.tip ? node.tip(x, y) : node.dataset.tip;
  if (!text) return hush();
  tipBox.textContent = text;
  tipBox.hidden = false;
  const box = tipBox.getBoundingClientRect(), edge = 8;
  tipBox.style.left = `${clamp(x + 14, edge, innerWidth - box.width - edge)}px`;
  // Above if there is no room below: a tip must not cover what it tells of.
  const below = y + 18 + box.height + edge < innerHeight;
  tipBox.style.top = `${below ? y + 18 : Math.max(edge, y - box.height - 12)}px`;
}
const hush = () => { tipBox.hidden = true; };
document.addEventListener('pointermove', event => {
  const node = event.target.closest && event.target.closest('[data-tip]');
  if (node) tell(node, event.clientX, event.clientY); else hush();
});
document.addEventListener('focusin', event => {
  const node = event.target.closest('[data-tip]');
  if (!node || !event.target.matches(':focus-visible')) return;
  const box = node.getBoundingClientRect();
  tell(node, box.left, box.bottom - 12);
});
document.addEventListener('focusout', hush);
document.addEventListener('scroll', hush, {passive: true});
document.addEventListener('keydown', event => { if (event.key === 'Escape') hush(); });

// Choices that look alike everywhere.

function segmented(label, choices, chosen, pick) {
  if (choices.length < 2) return null;
  const group = el('div', {class: 'segmented', role: 'group', 'aria-label': label});
  for (const [value, text, hint] of choices) {
    group.append(el('button', {
      type: 'button', 'aria-pressed': String(value === chosen), title: hint, 'data-value': value,
      onclick: () => {
        for (const other of group.children) other.setAttribute('aria-pressed', String(other.dataset.value === String(value)));
        pick(value);
      },
    }, text));
  }
  return group;
}
function dropdown(label, choices, chosen, pick) {
  const select = el('select', {'aria-label': label, onchange: event => pick(event.target.value)});
  for (const [value, text] of choices) select.append(el('option', {value, selected: value === chosen}, text));
  return el('label', {class: 'field'}, el('span', {}, label), select);
}
function copyable(text) {
  const button = el('button', {type: 'button', class: 'copy', onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = 'copied'; }
    catch { getSelection().selectAllChildren(code); button.textContent = 'selected'; }
    setTimeout(() => { button.textContent = 'copy'; }, 1500);
  }}, 'copy');
  // A browser may break a line after any hyphen, also inside --option. Only a long name may be broken.
  const code = el('code', {}, text.split(/( +)/).map(word => word.length > 30 ? word : el('span', {}, word)));
  return el('span', {class: 'command'}, code, button);
}
const empty = (...words) => el('p', {class: 'empty'}, ...words);

// Words that a shell reads as they are.
const quote = word => /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
const command = (...more) => [...DATA.command, ...more].map(quote).join(' ');
