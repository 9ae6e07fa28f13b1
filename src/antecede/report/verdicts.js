// The answer: how many runs kept the order that their protocols promise, and which did not. A verdict is a sign and a
// word, never a colour alone. Python decides it (promises.py), for the headline and for this.

const CLASSES = {
  kept: {sign: '✓', word: 'kept', long: 'kept causal order'},
  unpromised: {sign: '○', word: 'not promised', long: 'broke causal order, which their protocols do not promise', one: 'broke causal order, which its protocol does not promise'},
  broke: {sign: '✗', word: 'broken', long: 'broke causal order'},
  faulty: {sign: '!', word: 'faulty', long: 'lost, repeated or misdelivered messages'},
  unknown: {sign: '?', word: 'unknown', long: 'without a verdict'},
};
const KINDS = {
  violation: ['violation', 'violations', 'A message was delivered after one that it causally precedes.'],
  fifo_break: ['FIFO break', 'FIFO breaks', 'Two messages of one sender were delivered in the wrong order.'],
  duplicate: ['duplicate', 'duplicates', 'A message was delivered again.'],
  unsent: ['never sent', 'never sent', 'A message was delivered that nobody sent.'],
  unaddressed: ['not addressed', 'not addressed', 'A message was delivered to a process that is not among its destinations.'],
  undelivered: ['undelivered', 'undelivered', 'A message was never delivered to a process that it was addressed to.'],
};
const NONE = 'not stated';
const netOf = run => run.network || NONE;
const violations = run => run.found.violation || 0;
const others = run => sum(Object.entries(run.found).filter(([kind]) => kind !== 'violation').map(([, x]) => x));

// The worst first.
const ORDER = ['broke', 'faulty', 'unknown', 'unpromised', 'kept'];
for (const run of DATA.runs) run.class = run.outcome;
const PROTOCOLS = unique(DATA.runs.map(run => run.protocol)), NETWORKS = unique(DATA.runs.map(netOf));
// Events that came without a protocol have nothing to say of protocols.
const named = PROTOCOLS.some(name => name && name !== 'unknown');

const badge = (name, text) =>
  el('span', {class: `badge ${name}`}, el('span', {class: 'sign', 'aria-hidden': 'true'}, CLASSES[name].sign), text || CLASSES[name].word);

function showVerdicts() {
  const total = DATA.runs.length + DATA.omitted;
  $('made').textContent = [DATA.made, DATA.version && `antecede ${DATA.version}`].filter(Boolean).join(' · ');
  if (!total) return $('tallies').append(empty('This trace has no runs: there is nothing to judge.'));
  const tally = name => DATA.runs.filter(run => run.class === name).length + (name === 'kept' ? DATA.omitted : 0);
  const shown = Object.keys(CLASSES).filter(name => tally(name) || (name === 'kept' && total > 1));
  const bar = el('div', {class: 'bar', role: 'img', 'aria-label': shown.map(name => `${tally(name)} ${CLASSES[name].word}`).join(', ')},
    shown.map(name => el('span', {class: name, style: `flex-grow:${tally(name)}`})));
  $('tallies').append(bar, el('ul', {}, shown.map(name => el('li', {},
    el('button', {type: 'button', class: `tally ${name}`, onclick: () => filterRuns({verdict: name})},
      el('span', {class: 'figure'}, el('span', {class: 'sign', 'aria-hidden': 'true'}, CLASSES[name].sign), count(tally(name))),
      el('span', {class: 'words'}, `${tally(name) === 1 ? 'run' : 'runs'} ${(tally(name) === 1 && CLASSES[name].one) || CLASSES[name].long}${partly(name)}`))))));
  const found = Object.keys(KINDS).map(kind => [kind, sum(DATA.runs.map(run => run.found[kind] || 0))]).filter(([, x]) => x);
  const deliveries = sum(DATA.runs.map(run => run.deliveries));
  if (deliveries || found.length) $('tallies').append(el('p', {class: 'found'}, `In ${plural(deliveries, 'delivery', 'deliveries')}: `,
    found.length ? found.map(([kind, x], i) => [i ? ' · ' : '', el('span', {'data-tip': KINDS[kind][2], tabindex: 0, class: 'hint'},
      `${count(x)} ${KINDS[kind][x === 1 ? 0 : 1]}`)]) : 'nothing wrong was found.'));
  if (DATA.runs.some(run => run.causality)) $('tallies').append(el('p', {class: 'muted'}, 'By stated causality: what the parents and links of spans say. ', el('a', {href: '#about'}, 'The other notion'), ' may find more.'));
  showReasons();
  showMatrix();
}

// Some promise causal order at one process: they keep it there, whatever happens elsewhere.
function partly(name) {
  const runs = DATA.runs.filter(run => run.class === name && name === 'kept' && violations(run));
  return runs.length ? `; ${count(runs.length)} of them ${runs.length === 1 ? 'promises' : 'promise'} it at one process only` : '';
}

function showReasons() {
  if (DATA.failed.length) $('reasons').append(el('details', {class: 'note'},
    el('summary', {}, `${plural(DATA.failed.length, 'run')} failed, and left no trace to judge.`),
    DATA.failed.slice(0, 20).map(({run, reason, command}) => el('div', {}, el('p', {}, el('strong', {}, run), `: ${reason}`), command ? copyable(command) : null)),
    DATA.failed.length > 20 ? el('p', {}, `and ${count(DATA.failed.length - 20)} more`) : null));
  const unknown = DATA.runs.filter(run => run.class === 'unknown');
  for (const reason of unique(unknown.map(run => run.reason || 'no reason was given'))) {
    const runs = unknown.filter(run => (run.reason || 'no reason was given') === reason);
    $('reasons').append(el('p', {class: 'note'}, badge('unknown'), ' ',
      runs.length === 1 ? el('a', {href: linkTo(runs[0])}, runs[0].run) : plural(runs.length, 'run'), `: ${reason}`));
  }
}

function promised(protocol) {
  const {promise} = DATA.runs.find(run => run.protocol === protocol);
  return promise ? el('small', {class: 'promise'}, `promises ${promise}`) : null;
}

// Protocols down, networks across: who kept the order, and where. Worth its room only if there is something to compare.
function showMatrix() {
  const protocols = PROTOCOLS, networks = NETWORKS;
  if (!named || protocols.length * networks.length < 2) return;
  const cell = (protocol, network) => {
    const runs = DATA.runs.filter(run => run.protocol === protocol && netOf(run) === network);
    if (!runs.length) return el('td', {class: 'none'}, '–');
    const worst = ORDER.find(name => runs.some(run => run.class === name));
    const kept = runs.filter(run => run.class === 'kept').length, found = sum(runs.map(violations));
    // A kept promise may cover one process: what was found is at the others.
    const many = `${plural(found, 'violation')}${kept === runs.length ? ' elsewhere' : ''}`;
    const text = runs.length === 1 || !kept && runs.every(run => run.class === worst) ? CLASSES[worst].word : kept === runs.length ? `${kept} kept` : `${kept} of ${runs.length} kept`;
    return el('td', {}, el('button', {type: 'button', class: `cell ${worst}`, onclick: () => filterRuns({protocol, network}),
      'aria-label': `${protocol} on ${network}: ${text}${found ? `, ${many}` : ''}. Show these runs.`},
      badge(worst, text), found ? el('small', {}, many) : null));
  };
  $('matrix').append(el('h3', {}, networks.length > 1 ? 'Who kept causal order, and on which network' : 'Who kept causal order'), el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Verdicts by protocol and network'},
    el('table', {class: 'matrix'},
      el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'protocol'), networks.map(name => el('th', {scope: 'col', title: name}, name === NONE && networks.length === 1 ? 'verdict' : breakable(name))))),
      el('tbody', {}, protocols.map(protocol => el('tr', {},
        el('th', {scope: 'row', title: protocol}, protocol, promised(protocol)), networks.map(network => cell(protocol, network))))))));
}
