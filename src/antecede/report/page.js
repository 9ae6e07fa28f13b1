// One run in detail, what the page holds, the theme, and the address: `#run=NAME&finding=2` leads to a finding.

const linkTo = (run, finding) => `#run=${encodeURIComponent(run.run)}${known(finding) ? `&finding=${finding + 1}` : ''}`;
let diagram, strip, current = null;

function showOne(run, number) {
  const model = modelOf(run), finding = known(number) ? run.findings[number] : undefined;
  if (current !== run) buildOne(run, model);
  current = run;
  for (const [i, item] of [...document.querySelectorAll('#findings button')].entries()) item.setAttribute('aria-current', String(i === number));
  const told = finding ? storyOf(model, finding) : null;
  $('caption').replaceChildren(...(finding
    ? [badge(['violation', 'fifo_break'].includes(finding.kind) ? 'broke' : 'faulty', KINDS[finding.kind][0]), ' ', sayFinding(model, finding),
      ...(told.whole ? [] : [el('span', {class: 'muted'}, ' (some of its events are not on this page)')])]
    : [run.whole ? `All ${plural(run.size, 'event')} of this run are on this page.` : `${count(run.table.kind.length)} of ${plural(run.size, 'event')} of this run are on this page.`]));
  $('proof').replaceChildren(...(finding && finding.spans ? [proofOf(model, finding)] : []));
  diagram.show(run, finding);
  showChoices(Boolean(finding));
}

// The chain of spans, each by the ids that its owner knows.
function proofOf(model, finding) {
  const by = new Map(finding.path.map(m => [model.id(m), m]));
  const last = finding.spans.length - 1;
  const rows = finding.spans.map((id, i) => {
    const [trace, span] = id.split(':'), m = by.get(id);
    const role = i === 0 ? 'handed over late' : i === last ? 'handed over before it' : known(m) ? 'sent after it' : 'follows from it';
    return el('tr', {}, el('td', {class: 'number'}, String(i + 1)), el('td', {}, role), el('td', {}, (finding.spanNames && finding.spanNames[i]) || (known(m) ? model.name(m) : '')), el('td', {}, el('code', {}, span)), el('td', {}, el('code', {}, trace)));
  });
  return el('details', {class: 'note proof', open: true}, el('summary', {}, `The proof: ${plural(finding.spans.length, 'span')}, each of which names the one before it as its parent or by a link`),
    el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Spans of the proof'}, el('table', {},
      el('thead', {}, el('tr', {}, ['', 'it was', 'operation', 'span', 'trace'].map(name => el('th', {scope: 'col'}, name)))), el('tbody', {}, rows))));
}

function buildOne(run, model) {
  const runs = chosenRuns().includes(run) ? chosenRuns() : DATA.runs, at = runs.indexOf(run);
  const step = (text, to) => el('a', {class: 'button', href: to ? linkTo(to) : null, 'aria-disabled': to ? null : 'true', role: to ? null : 'link'}, text);
  const host = el('div', {id: 'diagram', tabindex: 0, role: 'application', 'aria-label': 'Space-time diagram', 'aria-describedby': 'keys'});
  strip = overview(run, model, pickTime);
  $('one-title').textContent = `One run: ${short(run.run, 80)}`;
  $('one-body').replaceChildren();
  put($('one-body'), {}, [
    runs.length < 2 ? null : el('div', {class: 'chooser'},
      el('label', {class: 'field wide'}, el('span', {}, 'Run'), el('select', {onchange: event => { location.hash = linkTo(DATA.runs[event.target.value]); }},
        runs.map(other => el('option', {value: DATA.runs.indexOf(other), selected: other === run}, `${CLASSES[other.class].sign} ${short(other.run, 70)}`)))),
      step('Previous', runs[at - 1]), step('Next', runs[at + 1])),
    factsOf(run),
    run.reason && run.class === 'unknown' ? el('p', {class: 'note'}, badge('unknown'), ` ${run.reason}`) : null,
    findingsOf(run, model),
    el('div', {hidden: run.size ? null : true},
      el('h3', {}, 'Space and time'),
      el('p', {id: 'caption', 'aria-live': 'polite'}),
      el('div', {id: 'proof'}),
      el('div', {id: 'choices', class: 'controls'}),
      host,
      el('p', {id: 'seen', class: 'muted small'}),
      legend(),
      el('p', {id: 'keys', class: 'muted small'}, 'Drag to move, Ctrl and the wheel to zoom. Keys: arrows go from event to event, Enter follows a message, + and − zoom, 0 fits.'),
      el('div', {hidden: run.untimed},
        el('h3', {}, 'Where the events are'),
        strip.node, el('p', {id: 'elsewhere', class: 'small', 'aria-live': 'polite'}, elsewhere(run)))),
    el('div', {class: 'pair'}, run.channels && run.n > 1 ? el('div', {}, el('h3', {}, 'Who sends to whom'), channelMap(run, model)) : null, processesOf(run)),
  ]);
  const {axis = 'order', control = false} = diagram || {};
  diagram = new Diagram(host, (a, b, seen, lines) => { strip.mark(a, b); $('seen').textContent = `${plural(seen, 'event')} in view${lines < run.n ? ` at ${lines} of ${plural(run.n, 'process', 'processes')}` : ''}${run.untimed ? '' : `, ${instant(a, b - a, b)} to ${instant(b, b - a)}`}`; });
  // What was chosen for one run holds for the next, if that has times.
  Object.assign(diagram, {axis: run.untimed ? 'order' : axis, control});
}

function showChoices(story) {
  const jump = run => dropdown('Go to', [['', 'a window …'], ...run.windows.map(({title}, i) => [String(i), title])], '', i => {
    if (i === '') return;
    const {first, last} = run.windows[i];
    diagram.change({rows: 'all'});
    diagram.fit(diagram.drawn.filter(e => e >= first && e <= last));
  });
  const button = (text, hint, act) => el('button', {type: 'button', title: hint, 'aria-label': hint, onclick: act}, text);
  $('choices').replaceChildren(...[
    segmented('Events', story ? [['story', 'Finding only'], ['involved', 'Its processes'], ['all', 'All']] : [['all', 'All processes']], diagram.rows, rows => diagram.change({rows})),
    segmented('Horizontal axis', [['order', 'By order', 'Every event one step: arrows always go right'], ...(current.untimed ? [] : [['time', 'By time']])], diagram.axis, axis => diagram.change({axis})),
    named ? el('label', {class: 'check'}, el('input', {type: 'checkbox', checked: diagram.control, onchange: event => diagram.change({control: event.target.checked})}), ' control packets') : null,
    el('span', {class: 'segmented'}, button('−', 'Zoom out', () => diagram.zoom(1 / 0.6)), button('+', 'Zoom in', () => diagram.zoom(0.6)),
      button('←', 'Earlier', () => diagram.pan(-0.6)), button('→', 'Later', () => diagram.pan(0.6)), button('Fit', 'Fit the finding, or the beginning', () => diagram.fit())),
    current.windows.length ? jump(current) : null,
  ].filter(known));
}

// The overview was clicked: go there, or say how to get there.
function pickTime(from, to, events) {
  if (diagram.find(from, to)) return $('elsewhere').replaceChildren(...elsewhere(current));
  if (!events) return $('elsewhere').replaceChildren('Nothing happened at that time.');
  // As much of it as makes a window of some hundred events.
  const width = Math.max(1, Math.min(to - from, (to - from) * 400 / events));
  const ask = command('--window', `${current.run}:${Math.floor(from)}ns:${Math.ceil(from + width)}ns`);
  $('elsewhere').replaceChildren('The events of that time are not on this page. This makes a page that has them: ', copyable(ask));
}
function elsewhere(run) {
  if (run.whole) return ['All events of this run are on this page. Click on the picture to see them.'];
  return ['The marks below the picture are what this page has. Click anywhere to go there, or to get the command for it.'];
}

// The reasons of an unknown verdict have a line of their own.
const parametersOf = run => Object.entries(JSON.parse(run.parameters)).filter(([name]) => name !== 'unknown')
  .map(([name, value]) => `${name}=${typeof value === 'string' ? value : JSON.stringify(value)}`).join(', ');

function factsOf(run) {
  const price = run.price || {}, notion = run.causality ? ' (potential)' : '';
  const facts = [['verdict', badge(run.class)], ['protocol', named ? run.protocol : null], ['promises', run.promise], ['network', breakable(run.network)], ['workload', breakable(run.workload)], ['topology', breakable(run.topology)],
    ['causality', run.causality], ['processes', count(run.n)], ['events', count(run.size)], ['deliveries', count(run.deliveries)], ['duration', known(price.duration_ns) ? time(price.duration_ns) : null],
    [`longest chain${notion}`, known(price.longest_chain) ? plural(price.longest_chain, 'message') : null], [`concurrency${notion}`, known(price.concurrency) ? percent(price.concurrency) : null],
    ['seed', run.seed], ['parameters', run.parameters === '{}' || run.causality ? null : parametersOf(run)]];
  return el('dl', {class: 'facts'}, facts.filter(([, value]) => known(value)).map(([name, value]) => el('div', {class: name}, el('dt', {}, name), el('dd', {}, value))));
}

function findingsOf(run, model) {
  const total = sum(Object.values(run.found));
  if (!total) return run.class === 'unknown' ? null : empty('Nothing wrong was found in this run.');
  const more = total > run.findings.length ? `, the first ${count(run.findings.length)} of them here` : '';
  return el('div', {}, el('h3', {}, 'Findings'),
    el('p', {class: 'muted'}, Object.entries(run.found).map(([kind, x]) => `${count(x)} ${KINDS[kind][x === 1 ? 0 : 1]}`).join(' · ') + more),
    el('ol', {id: 'findings', tabindex: -1}, run.findings.map((finding, i) => el('li', {}, el('button', {type: 'button', class: finding.kind, onclick: () => { location.hash = linkTo(run, i); $('caption').scrollIntoView({block: 'start', behavior: calm() ? 'auto' : 'smooth'}); }},
      el('span', {class: 'kind'}, KINDS[finding.kind][0]), el('span', {}, sayFinding(model, finding)))))));
}

function legend() {
  const sign = (text, ...parts) => el('li', {}, draw('svg', {width: 34, height: 18, viewBox: '-17 -9 34 18', 'aria-hidden': 'true'}, parts), text);
  const dot = (kind, role) => draw('g', {class: `event ${role || ''}`}, draw('circle', {class: kind, r: 5}));
  return el('ul', {class: 'legend'},
    sign('sent', dot('sent')), sign('delivered', dot('delivered')), sign('received and held', dot('received')),
    sign('overtaken', draw('g', {class: 'event late'}, draw('circle', {r: 8, class: 'ring'}), draw('path', {class: 'cross', d: 'M-4-4 4 4M-4 4 4-4'}))),
    sign('chain', draw('line', {class: 'path', x1: -17, x2: 17}), draw('line', {class: 'edge chain', x1: -17, x2: 17})),
    sign('overtook', draw('line', {class: 'edge by', x1: -17, x2: 17})),
    sign('events not on this page', draw('line', {class: 'life missing', x1: -17, x2: 17})),
    sign('other end not here', draw('line', {class: 'edge stub', x1: -12, y1: 6, x2: 12, y2: -6})));
}

function processesOf(run) {
  if (!run.processes.length || !run.size) return null;
  const columns = [['process', x => x, 'process'], ['sends', count, 'sends'], ['deliveries', count, 'deliveries'], ['control_packets', count, 'control packets'],
    ['delay_ns_p50', time, 'delay, median'], ['delay_ns_p99', time, 'delay, p99'], ['wait_ns_mean', time, 'waiting, mean'], ['wait_ns_p99', time, 'waiting, p99']]
    .filter(([key]) => (named || key !== 'control_packets') && run.processes.some(row => known(row[key])));
  const most = Object.fromEntries(columns.slice(1).map(([key]) => [key, Math.max(...run.processes.map(row => row[key] || 0))]));
  const cell = (row, [key, show]) => el('td', {class: 'number shaded', style: `--share:${most[key] ? ((row[key] || 0) / most[key]).toFixed(3) : 0}`}, show(row[key]));
  return el('div', {}, el('h3', {}, run.processes.length === run.n ? 'Each process' : `${count(run.processes.length)} of ${count(run.n)} processes`),
    el('div', {class: 'scroll tall', tabindex: 0, role: 'region', 'aria-label': 'Processes'}, el('table', {class: 'processes'},
      el('thead', {}, el('tr', {}, columns.map(([, , label], i) => el('th', {scope: 'col', class: i ? 'number' : null}, label)))),
      el('tbody', {}, run.processes.map(row => el('tr', {}, el('th', {scope: 'row', title: row.process}, row.process), columns.slice(1).map(column => cell(row, column))))))));
}

function showAbout() {
  const all = sum(DATA.runs.map(run => run.size)), here = sum(DATA.runs.map(run => run.table.kind.length));
  const parts = DATA.runs.filter(run => !run.whole);
  const example = parts[0] || DATA.runs.find(run => run.size && !run.untimed);
  $('about-body').append(...[
    el('p', {}, parts.length ? `This page has ${count(here)} of ${plural(all, 'event')}: ${parts.length < DATA.runs.length ? `all of ${plural(DATA.runs.length - parts.length, 'run')}, and ` : ''}windows of ${plural(parts.length, 'run')}. ` +
      'Verdicts, counts and prices are of all events, not of these alone.' : all ? `This page has all ${plural(all, 'event')} of ${plural(DATA.runs.length, 'run')}.` :
      'There are no events to show: a trace has the sends and deliveries of messages, and none of these are known.'),
    example ? el('p', {}, 'To see another part of a run, name it with ', el('code', {}, '--window RUN:FROM:TO'), ': times from the start of the run (', el('code', {}, '2.5s'), ', ',
      el('code', {}, '300ms'), ') or clocks (whole numbers). For example:') : null,
    example ? copyable(command('--window', `${example.run}:0s:1s`)) : null,
    DATA.runs.some(run => run.causality) ? el('p', {}, el('strong', {}, 'Stated causality. '),
      'A message comes before another here if a chain of parents and links of spans leads from the other to it. ' +
      'The other notion, potential causality, takes everything that a process did before for a cause; for a service with threads it finds violations between requests that have nothing to do with each other. ' +
      'Ask for it with ', el('code', {}, 'antecede verify --causality potential'), '. Concurrency and the longest chain are always measured by potential causality.')
      : el('p', {class: 'muted'}, 'Verdicts follow from program order and messages alone, never from what a protocol says of itself. Nothing on this page was fetched, and nothing leaves it.'),
  ].filter(known));
}

function showTheme() {
  const themes = ['system', 'light', 'dark'], button = $('theme');
  let theme = 'system';
  // A file opened from a disk may have no storage.
  try { theme = localStorage.getItem('antecede-theme') || theme; } catch { /* the choice lasts as long as the page */ }
  const use = () => { document.documentElement.dataset.theme = theme; button.textContent = `Theme: ${theme}`; };
  button.addEventListener('click', () => {
    theme = themes[(themes.indexOf(theme) + 1) % 3];
    try { localStorage.setItem('antecede-theme', theme); } catch { /* as above */ }
    use();
  });
  use();
}

function followAddress(jump) {
  const words = new URLSearchParams(location.hash.slice(1)), run = DATA.runs.find(run => run.run === words.get('run'));
  if (!run) return;
  const number = words.has('finding') ? Number(words.get('finding')) - 1 : run.findings.length ? 0 : undefined;
  showOne(run, run.findings[number] ? number : undefined);
  if (jump && !words.has('finding')) $('one').scrollIntoView({behavior: calm() ? 'auto' : 'smooth'});
}

// A section that has nothing to show is not there, and nothing leads to it.
function leaveOut(id) {
  $(id).hidden = true;
  document.querySelector(`nav a[href="#${id}"]`).hidden = true;
}

document.body.classList.add('ready');
showTheme();
showVerdicts();
showRuns();
showPrices();
showAbout();
if (!DATA.runs.length) ['runs', 'prices', 'one'].forEach(leaveOut);
else {
  // The first thing to look at: a run that went wrong, if there is one.
  const first = chosenRuns()[0];
  showOne(first, first.findings.length ? 0 : undefined);
  followAddress(true);
}
addEventListener('hashchange', () => followAddress(true));
