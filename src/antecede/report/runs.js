// The table of runs: sorted by any column, filtered by protocol, network, verdict and text, a page at a time, because a
// sweep has a thousand of them.

const PAGE = 25;
const price = name => run => run.price ? run.price[name] : undefined;
const COLUMNS = [
  {name: 'verdict', value: run => Object.keys(CLASSES).indexOf(run.class), show: run => badge(run.class), text: true},
  {name: 'run', value: run => run.run, show: run => el('a', {href: linkTo(run)}, run.run), text: true, head: true},
  {name: 'protocol', value: run => named ? run.protocol : undefined, show: run => run.protocol, text: true},
  {name: 'network', value: run => run.network || undefined, show: run => breakable(netOf(run)), text: true},
  {name: 'processes', value: run => run.n, show: run => count(run.n)},
  {name: 'events', value: run => run.size, show: run => count(run.size)},
  {name: 'violations', value: violations, show: run => count(violations(run)), hint: KINDS.violation[2]},
  {name: 'other findings', value: others, show: run => count(others(run)), hint: 'FIFO breaks, duplicates, and messages never sent, not addressed or undelivered'},
  {name: 'stamp, mean', value: price('stamp_bytes_mean'), show: run => bytes(price('stamp_bytes_mean')(run)), hint: 'Bytes of ordering information that a message carries, on average'},
  {name: 'control, mean', value: run => named ? price('control_per_message')(run) : undefined, show: run => figure(price('control_per_message')(run)), hint: 'Control packets for each message'},
  {name: 'delay, median', value: price('delay_ns_p50'), show: run => time(price('delay_ns_p50')(run)), hint: 'From send to delivery: the median'},
  {name: 'delay, p99', value: price('delay_ns_p99'), show: run => time(price('delay_ns_p99')(run)), hint: 'From send to delivery: 99 of 100 are faster'},
  {name: 'waiting, share', value: price('wait_share'), show: run => percent(price('wait_share')(run)), hint: 'The part of all delay that messages were held at their receiver'},
];
// A column in which nothing was measured tells nothing.
const SHOWN = COLUMNS.filter(({value}) => DATA.runs.some(run => known(value(run))));
const ALL = '';
const wanted = {sort: 'verdict', down: false, protocol: ALL, network: ALL, verdict: ALL, text: '', page: 0};

function chosenRuns() {
  const text = wanted.text.toLowerCase();
  const column = COLUMNS.find(column => column.name === wanted.sort);
  const runs = DATA.runs.filter(run =>
    (wanted.protocol === ALL || run.protocol === wanted.protocol) && (wanted.network === ALL || netOf(run) === wanted.network) &&
    (wanted.verdict === ALL || run.class === wanted.verdict) && (!text || run.run.toLowerCase().includes(text)));
  // The worst first unless asked otherwise; what was not measured is last either way.
  const value = wanted.sort === 'verdict' ? run => ORDER.indexOf(run.class) : column.value;
  return runs.map(run => [value(run), run]).sort(([a], [b]) => {
    if (!known(a) || !known(b)) return known(b) - known(a);
    const order = typeof a === 'string' ? a.localeCompare(b, 'en', {numeric: true}) : a - b;
    return wanted.down ? -order : order;
  }).map(([, run]) => run);
}

function filterRuns(filter) {
  Object.assign(wanted, {protocol: ALL, network: ALL, verdict: ALL, text: '', page: 0}, filter);
  showRuns();
  $('runs').scrollIntoView({behavior: calm() ? 'auto' : 'smooth'});
}
const calm = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

function showRuns() {
  if (!DATA.runs.length) return $('runs-table').replaceChildren(empty('No runs.'));
  const names = (label, values) => [[ALL, `all ${label}`], ...values.map(value => [value, short(value, 60)])];
  const set = change => { Object.assign(wanted, {page: 0}, change); fillRuns(); };
  const find = el('input', {type: 'search', value: wanted.text, placeholder: 'part of a name', oninput: event => set({text: event.target.value})});
  $('runs-table').replaceChildren(
    DATA.runs.length < 2 ? '' : el('div', {class: 'filters'},
      PROTOCOLS.length < 2 ? null : dropdown('Protocol', names('protocols', PROTOCOLS), wanted.protocol, protocol => set({protocol})),
      NETWORKS.length < 2 ? null : dropdown('Network', names('networks', NETWORKS), wanted.network, network => set({network})),
      dropdown('Verdict', [[ALL, 'all verdicts'], ...Object.entries(CLASSES).filter(([key]) => DATA.runs.some(run => run.class === key)).map(([key, {word}]) => [key, word])], wanted.verdict, verdict => set({verdict})),
      el('label', {class: 'field'}, el('span', {}, 'Run'), find)),
    el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Runs'}, el('table', {class: 'runs'},
      el('thead', {}, el('tr', {}, SHOWN.map(column => el('th', {scope: 'col', class: column.text ? null : 'number', 'data-column': column.name},
        el('button', {type: 'button', 'data-tip': column.hint, onclick: () => set({
          sort: column.name,
          // Names begin with the first, figures with the greatest.
          down: wanted.sort === column.name ? !wanted.down : !column.text,
        })}, column.name))))),
      el('tbody', {id: 'runs-rows'}))),
    el('div', {id: 'runs-pages', class: 'pages'}));
  fillRuns();
}

function fillRuns() {
  const runs = chosenRuns(), last = Math.max(0, Math.ceil(runs.length / PAGE) - 1);
  wanted.page = clamp(wanted.page, 0, last);
  const from = wanted.page * PAGE, page = runs.slice(from, from + PAGE);
  for (const th of document.querySelectorAll('.runs th[data-column]')) {
    if (th.dataset.column === wanted.sort) th.setAttribute('aria-sort', wanted.down ? 'descending' : 'ascending');
    else th.removeAttribute('aria-sort');
  }
  $('runs-rows').replaceChildren(...page.map(run => el('tr', {class: run.class, 'data-run': run.run,
    onclick: event => { if (!event.target.closest('a')) location.hash = linkTo(run); }},
    SHOWN.map(column => el(column.head ? 'th' : 'td', {scope: column.head ? 'row' : null, class: column.text ? column.name : 'number'}, column.show(run))))));
  if (!page.length) $('runs-rows').append(el('tr', {}, el('td', {colspan: SHOWN.length}, empty('No run is like that. ',
    el('button', {type: 'button', onclick: () => filterRuns({})}, 'Show all runs')))));
  const turn = (text, step, able) => el('button', {type: 'button', disabled: !able, onclick: () => { wanted.page += step; fillRuns(); }}, text);
  $('runs-pages').replaceChildren(
    el('span', {'aria-live': 'polite'}, runs.length > PAGE ? `${from + 1}–${from + page.length} of ${plural(runs.length, 'run')}` : plural(runs.length, 'run')),
    ...(runs.length > PAGE ? [turn('Previous', -1, wanted.page > 0), turn('Next', 1, wanted.page < last)] : []),
    ...(DATA.omitted ? [el('span', {class: 'muted'}, `${plural(DATA.omitted, 'further run')} kept causal order and are not listed.`)] : []));
}
