// Asks for what is new each second, and draws it. Elements are made by name and given text: no name out of a stream
// can become markup.
(() => {
'use strict';
const SVG = 'http://www.w3.org/2000/svg';
const STALLED = 30e3, KEPT = 600, RATE_OVER = 10;
// A status names so many causes; there may be more.
const CAUSES_MOST = 20;
const $ = id => document.getElementById(id);
const whole = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const statuses = [];
let skew = 0;

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'style') for (const [key, set] of Object.entries(value)) node.style.setProperty(key, set);
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
function ago(ms) {
  const value = Math.max(0, ms);
  for (const [unit, size, most] of [['ms', 1, 1000], ['s', 1000, 120], ['min', 60000, 180]])
    if (value < size * most) return `${whole.format(value / size)} ${unit}`;
  return `${whole.format(value / 3600000)} h`;
}
const sum = (values, of) => values.reduce((total, value) => total + of(value), 0);

// Rows a second of time that passed until `until`, over the last batches up to the one at `end`.
function rate(end, of, until = statuses[end].time_ms) {
  const some = statuses.slice(Math.max(0, end - RATE_OVER + 1), end + 1);
  return sum(some, of) * 1000 / Math.max(1, until - some[0].time_ms + some[0].duration_ms);
}
const stalled = (last, now) => now - last.time_ms > STALLED;

function drawState(last, now) {
  const node = $('state'), silent = now - last.time_ms;
  if (last.ended !== null) {
    node.className = 'badge broken';
    node.textContent = `ended after batch ${whole.format(last.batch)}: ${last.ended}`;
  } else if (stalled(last, now)) {
    node.className = 'badge';
    node.textContent = `no batch for ${ago(silent)}`;
  } else {
    node.className = 'badge running';
    node.textContent = `running, batch ${whole.format(last.batch)}`;
  }
}
function drawFigures(last, now) {
  const end = statuses.length - 1, until = stalled(last, now) ? now : last.time_ms;
  const cells = [
    ['rows in per second', whole.format(rate(end, s => s.rows_in, until))],
    ['rows out per second', whole.format(rate(end, s => s.rows_out, until))],
    ['rows held', whole.format(last.held)],
    ['longest wait', last.oldest_ms === null ? '–' : ago(now - last.oldest_ms)],
    ['causes given up', whole.format(last.all_given_up), last.all_given_up ? 'warn' : ''],
    ['delivered late', whole.format(last.all_late), last.all_late ? 'warn' : ''],
    ['refused', whole.format(last.all_refused), last.all_refused ? 'warn' : ''],
    ['findings', whole.format(last.all_found), last.all_found ? 'bad' : ''],
  ];
  $('figures').replaceChildren(...cells.map(([name, figure, tone]) =>
    el('div', {class: `figure ${tone || ''}`}, el('b', {}, figure), el('span', {}, name))));
}

// Lines over time: [{values, colour}], one value for each status.
function chart(node, lines, now) {
  const first = statuses[0].time_ms, last = statuses[statuses.length - 1], span = Math.max(1, last.time_ms - first);
  const top = Math.max(1, ...lines.flatMap(line => line.values));
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('viewBox', '0 0 1000 100');
  svg.setAttribute('preserveAspectRatio', 'none');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label', `at most ${whole.format(top)}`);
  for (const {values, colour} of lines) {
    const points = values.map((value, i) => `${((statuses[i].time_ms - first) / span * 1000).toFixed(1)} ${(96 - value / top * 88).toFixed(1)}`);
    const path = document.createElementNS(SVG, 'path');
    path.setAttribute('d', 'M' + (points.length > 1 ? points : [points[0], `1000 ${points[0].split(' ')[1]}`]).join('L'));
    path.style.stroke = `var(--${colour})`;
    svg.append(path);
  }
  const scale = el('div', {class: 'scale'}, el('span', {}, `${ago(now - first)} ago`), el('span', {}, `highest: ${whole.format(top)}`),
    el('span', {}, stalled(last, now) ? `${ago(now - last.time_ms)} ago` : 'now'));
  node.replaceChildren(svg, scale);
}
// A column in which no row has a word is left out.
function table(names, cellsOf, more) {
  const used = names.map((_, i) => cellsOf.some(cells => cells[i]));
  const heads = names.filter((_, i) => used[i]), rows = cellsOf.map(cells => cells.filter((_, i) => used[i]));
  const head = el('tr', {}, ...heads.map(([name, numeric]) => el('th', numeric ? {class: 'number'} : {}, name)));
  const body = rows.map(cells => el('tr', {}, ...cells.map((cell, i) => el('td', heads[i][1] ? {class: 'number'} : {}, cell))));
  const made = el('div', {class: 'scroll'}, el('table', {}, el('thead', {}, head), el('tbody', {}, ...body)));
  return more ? [made, el('p', {class: 'empty'}, more)] : [made];
}
function words(c) {
  const alone = c.first === c.last;
  if (c.counted === 'id' || c.counted === 'cycle') return c.sender;
  if (c.counted !== 'channel') return `${c.sender} ${alone ? c.first : `${c.first}–${c.last}`}`;
  return `the ${ordinal(c.first)}${alone ? '' : ` to ${ordinal(c.last)}`} message from ${c.sender} to ${c.receiver}`;
}
// A partition of rows is the list of its values, as JSON.
function place(receiver) {
  try {
    const values = receiver.startsWith('[') ? JSON.parse(receiver) : [receiver];
    return Array.isArray(values) ? values.map(String).join(', ') : receiver;
  } catch { return receiver; }
}
function ordinal(number) {
  const teen = [11, 12, 13].includes(number % 100);
  return `${number}${teen ? 'th' : ['th', 'st', 'nd', 'rd'][number % 10] ?? 'th'}`;
}
const plural = (many, what) => `${whole.format(many)} ${what}${many === 1 ? '' : 's'}`;
function drawCauses(last, now) {
  if (!last.causes.length) return $('causes').replaceChildren(el('p', {class: 'empty'}, 'Nothing waits.'));
  const rows = last.causes.map(c => [
    words(c), c.group ? `${place(c.receiver)}, ${c.group}` : place(c.receiver), whole.format(c.held), ago(now - c.since_ms)]);
  const cycles = last.causes.filter(c => c.counted === 'cycle').length;
  const messages = last.causes.reduce((sum, c) => sum + c.last - c.first + 1, 0) - cycles;
  const things = [[messages, 'message'], [cycles, 'cycle']].filter(([many]) => many).map(([many, what]) => plural(many, what));
  const least = last.causes.length < CAUSES_MOST ? '' : 'At least ';
  const told = `${least}${things.join(' and ')} ${messages + cycles === 1 ? 'holds' : 'hold'} up ${plural(last.held, 'row')}:`;
  $('causes').replaceChildren(el('p', {}, told), ...table([['waits for'], ['at'], ['held', true], ['since', true]], rows));
}
function drawFound(last) {
  $('found').parentElement.hidden = !last.found.length;
  const rows = [...last.found].reverse().map(f => [f.kind.replace('_', ' '), f.run, f.sender === null ? '' : `${f.sender} ${f.number}`, f.process,
    f.by_sender === null ? '' : `${f.by_sender} ${f.by_number}`]);
  const more = last.all_found - last.found.length;
  $('found').replaceChildren(...table([['what'], ['run'], ['message'], ['at'], ['overtaken by']], rows,
    more > 0 ? `and ${whole.format(more)} before these` : ''));
}
function drawFrontier(last) {
  const receivers = Object.keys(last.frontier).sort();
  // A stream by identifiers has none.
  $('frontier').parentElement.hidden = !receivers.length;
  const senders = [...new Set(receivers.flatMap(r => Object.keys(last.frontier[r])))].sort();
  const far = Object.fromEntries(senders.map(s => [s, Math.max(...receivers.map(r => last.frontier[r][s] || 0))]));
  const most = Math.max(1, ...senders.flatMap(s => receivers.map(r => s in last.frontier[r] ? far[s] - last.frontier[r][s] : 0)));
  const head = el('tr', {}, el('th', {}, 'receiver'), ...senders.map(s => el('th', {class: 'number'}, s)));
  const rows = receivers.map(r => el('tr', {}, el('th', {}, place(r)), ...senders.map(s => {
    const there = s in last.frontier[r], behind = there ? far[s] - last.frontier[r][s] : 0;
    return el('td', {class: 'number', style: {'--behind': String(behind / most)}, title: there ? `${whole.format(behind)} behind` : 'none'},
      there ? whole.format(last.frontier[r][s]) : '–');
  })));
  const more = last.more_receivers ? [el('p', {class: 'empty'}, `and ${whole.format(last.more_receivers)} more receivers`)] : [];
  $('frontier').replaceChildren(el('div', {class: 'scroll'}, el('table', {class: 'frontier'}, el('thead', {}, head), el('tbody', {}, ...rows))), ...more);
}

function drawAll() {
  if (!statuses.length) return;
  const last = statuses[statuses.length - 1], now = Date.now() + skew;
  $('none').hidden = true;
  for (const id of ['rates', 'held']) $(id).parentElement.hidden = false;
  drawState(last, now);
  drawFigures(last, now);
  // The first batches have the rate of all of them: one batch alone has waited for no trigger.
  const least = Math.min(RATE_OVER, statuses.length) - 1, over = of => statuses.map((_, i) => rate(Math.max(i, least), of));
  chart($('rates'), [{values: over(s => s.rows_in), colour: 'in'}, {values: over(s => s.rows_out), colour: 'out'}], now);
  if (statuses.some(s => s.held)) chart($('held'), [{values: statuses.map(s => s.held), colour: 'wait'}], now);
  else $('held').replaceChildren();
  drawCauses(last, now);
  drawFound(last);
  drawFrontier(last);
}
async function ask() {
  // The newest once more: it may be replaced by one that says that the query ended.
  const after = statuses.length ? statuses[statuses.length - 1].batch - 1 : -1;
  try {
    const answer = await (await fetch(`status?after=${after}`)).json();
    skew = answer.now_ms - Date.now();
    const from = answer.statuses.length ? answer.statuses[0].batch : Infinity;
    while (statuses.length && statuses[statuses.length - 1].batch >= from) statuses.pop();
    statuses.push(...answer.statuses);
    statuses.splice(0, Math.max(0, statuses.length - KEPT));
    drawAll();
  } catch (error) {
    $('state').className = 'badge broken';
    $('state').textContent = 'antecede watch does not answer';
  }
  setTimeout(ask, 1000);
}
ask();
})();
