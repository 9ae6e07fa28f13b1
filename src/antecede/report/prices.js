// What each protocol costs, for each network: bars of means, with a tick that 99 of 100 messages are below. Bars are
// boxes in a table, so that they wrap, print and read aloud like one.

const METRICS = {
  delay: {label: 'Delay', show: time, mean: 'delay_ns_mean', high: 'delay_ns_p99', part: 'wait_share',
    words: 'From send to delivery, on average.', partly: 'The hatched part is time held at the receiver, waiting for causality.'},
  bytes: {label: 'Stamp bytes', show: bytes, mean: 'stamp_bytes_mean', high: 'stamp_bytes_p99',
    words: 'Ordering information that a message carries on the wire, on average.'},
  entries: {label: 'Stamp entries', show: figure, mean: 'stamp_entries_mean', high: 'stamp_entries_p99',
    words: 'The same, counted as the protocol’s paper counts it.'},
  control: {label: 'Control packets', show: figure, mean: 'control_per_message',
    words: 'Packets of the protocol’s own (acknowledgements, permits ...) for each message.'},
  concurrency: {label: 'Concurrency', show: percent, mean: 'concurrency',
    words: 'The share of pairs of messages that are not ordered: how much freedom the computation had.'},
};
const QUANTITIES = {
  delay_ns: ['Delay', time], wait_ns: ['Waiting', time], stamp_bytes: ['Stamp bytes', bytes], stamp_entries: ['Stamp entries', figure],
};

// One slow protocol must not flatten all the rest: what is longer than so many usual bars fades out at the end of the
// scale. Its figure stands beside it.
const ROOM = 6;

function average(runs, name) {
  const values = runs.map(price(name)).filter(known);
  return values.length ? sum(values) / values.length : undefined;
}

function showPrices() {
  const measured = DATA.runs.filter(run => run.price);
  // Only a protocol sends packets of its own.
  const metrics = Object.entries(METRICS).filter(([name, metric]) => (named || name !== 'control') && measured.some(run => known(run.price[metric.mean])));
  if (!metrics.length) return leaveOut('prices');
  if (!named) {
    const timed = metrics[0][0] === 'delay';
    $('prices-title').textContent = timed ? 'Delay and concurrency' : 'Concurrency';
    document.querySelector('nav a[href="#prices"]').textContent = timed ? 'Delay' : 'Concurrency';
  }
  const facets = el('div', {class: 'facets'}), words = el('p', {class: 'muted words'});
  const pick = name => {
    const {words: told, partly, part} = METRICS[name];
    facets.replaceChildren(...facetsOf(measured, METRICS[name]));
    words.textContent = [told, partly && measured.some(run => run.price[part]) ? partly : '', facets.querySelector('.tick') ? 'The tick: 99 of 100 are below.' : ''].filter(Boolean).join(' ');
  };
  $('prices-body').append(
    el('div', {class: 'controls'}, segmented('Price', metrics.map(([name, {label}]) => [name, label]), metrics[0][0], pick)), words, facets);
  pick(metrics[0][0]);
  showHistograms();
}

function facetsOf(runs, metric) {
  const rows = runs => {
    const protocols = unique(runs.map(run => run.protocol));
    return protocols.map(protocol => {
      const own = runs.filter(run => run.protocol === protocol);
      return {protocol, runs: own, mean: average(own, metric.mean), high: metric.high && average(own, metric.high), part: metric.part ? average(own, metric.part) : 0};
    }).filter(row => known(row.mean)).sort((a, b) => a.mean - b.mean);
  };
  const facets = unique(runs.map(netOf)).map(network => [network, rows(runs.filter(run => netOf(run) === network))]).filter(([, rows]) => rows.length);
  // One scale for all networks, or their bars could not be compared.
  const means = facets.flatMap(([, rows]) => rows.map(row => row.mean)).sort((a, b) => a - b), usual = means[means.length >> 1];
  // A single bar has nothing to be compared with but its own tick, or all.
  const alone = means.length !== 1 ? 0 : metric.show === percent ? 1 : facets[0][1][0].high || 0;
  const most = Math.max(Math.min(means[means.length - 1] * 1.2, usual * ROOM || Infinity), alone) || 1;
  return facets.map(([network, rows]) => el('figure', {class: 'facet'},
    el('figcaption', {title: network}, network === NONE && facets.length === 1 ? (runs.length === 1 ? metric.label : 'Mean of all runs') : network),
    el('table', {class: 'bars'}, el('tbody', {}, rows.map(row => barOf(network, row, metric, most))))));
}

function barOf(network, {protocol, runs, mean, high, part}, metric, most) {
  const share = x => `${clamp(x / most * 100, 0, 100)}%`;
  const lines = [`${protocol}: ${metric.show(mean)} on average`];
  if (metric.part) lines.push(`waiting: ${percent(part)} of it`);
  if (known(high)) lines.push(`99 of 100 below ${metric.show(high)}`);
  lines.push(`${plural(runs.length, 'run')} on ${network}`);
  // The cheapest protocol is often one that does not keep the order: its bar says so.
  const worst = ['broke', 'faulty', 'unpromised'].find(name => runs.some(run => run.class === name));
  if (worst) lines.push(`${CLASSES[worst].sign} ${CLASSES[worst].one || CLASSES[worst].long}`);
  return el('tr', {},
    el('th', {scope: 'row'}, el('button', {type: 'button', class: 'plain', title: `${protocol}: show its runs`, onclick: () => filterRuns({protocol})}, named ? protocol : runs.length === 1 ? runs[0].run : 'all runs',
      worst ? el('span', {class: `mark ${worst}`}, ` ${CLASSES[worst].sign}`) : null)),
    el('td', {class: 'track', 'data-tip': lines.join('\n')}, el('div', {class: mean > most ? 'rail beyond' : 'rail'},
      el('span', {class: 'transit', style: `width:${share(mean * (1 - (part || 0)))}`}),
      part ? el('span', {class: 'wait', style: `width:${share(mean * part)}`}) : null,
      known(high) && high <= most ? el('i', {class: 'tick', style: `left:${share(high)}`}) : null)),
    el('td', {class: 'number'}, metric.show(mean)));
}

// Distributions: one small picture for each protocol, all with the same logarithmic axis.

function showHistograms() {
  const protocols = unique(DATA.runs.map(run => run.protocol)), place = histogram => protocols.indexOf(histogram.protocol);
  const all = DATA.histograms.filter(histogram => QUANTITIES[histogram.quantity] && sum(histogram.count)).sort((a, b) => place(a) - place(b));
  if (!all.length) return;
  const quantities = Object.keys(QUANTITIES).filter(name => all.some(histogram => histogram.quantity === name));
  const networks = unique(all.map(netOf));
  const state = {quantity: quantities[0], network: networks[0]};
  const body = el('div', {class: 'small-multiples'});
  const fill = change => { Object.assign(state, change); body.replaceChildren(...histogramsOf(all, state)); };
  $('prices-body').append(el('h3', {}, 'Distributions'),
    el('div', {class: 'controls'},
      segmented('Quantity', quantities.map(name => [name, QUANTITIES[name][0]]), state.quantity, quantity => fill({quantity})),
      networks.length > 1 ? dropdown('Network', networks.map(name => [name, short(name, 60)]), state.network, network => fill({network})) : null),
    body);
  fill({});
}

function histogramsOf(all, {quantity, network}) {
  const own = all.filter(histogram => histogram.quantity === quantity && netOf(histogram) === network);
  if (!own.length) return [empty('There is no distribution of this on that network.')];
  const show = QUANTITIES[quantity][1];
  const positive = own.flatMap(histogram => histogram.low.map((low, i) => [low, histogram.high[i]])).filter(([low]) => low > 0);
  const low = Math.min(...positive.map(([low]) => low), Infinity), high = Math.max(...positive.map(([, high]) => high), 0);
  const zeros = own.some(histogram => histogram.low.some(low => low <= 0));
  // Zero has no logarithm: it gets a bar of its own, left of the axis.
  const left = zeros ? 8 : 0, width = Math.max(Math.log(high / low), 1e-9);
  const x = value => left + Math.log(value / low) / width * (100 - left);
  return own.map(histogram => {
    const total = sum(histogram.count);
    const bars = histogram.count.map((number, i) => {
      const from = histogram.low[i] <= 0 ? 0 : x(histogram.low[i]), to = histogram.low[i] <= 0 ? left * 0.6 : x(histogram.high[i]);
      return {from, width: Math.max(to - from, 0.8), share: number / total, number, low: histogram.low[i], high: histogram.high[i]};
    });
    const top = Math.max(...bars.map(bar => bar.share));
    const picture = draw('svg', {viewBox: '0 0 100 40', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${histogram.protocol}: ${QUANTITIES[quantity][0]}`},
      bars.map(bar => draw('rect', {x: bar.from, width: bar.width, y: 40 - bar.share / top * 39, height: Math.max(bar.share / top * 39, 0.4), class: bar.low <= 0 ? 'zero' : 'transit',
        'data-tip': `${histogram.protocol}: ${bar.low <= 0 ? 'none' : `${show(bar.low)} to ${show(bar.high)}`}\n${percent(bar.share)}, ${count(bar.number)} of ${count(total)}`})));
    const axis = high > 0 ? [zeros ? '0' : show(low), zeros ? show(low) : null, show(high)] : ['0'];
    return el('figure', {class: 'histogram'}, el('figcaption', {title: histogram.protocol}, named ? histogram.protocol : QUANTITIES[quantity][0], el('span', {class: 'muted'}, ` peak ${percent(top)}`)),
      picture, el('div', {class: 'axis'}, axis.filter(known).map((text, i) => el('span', {style: i === 1 && axis[1] ? `left:${left}%` : null, class: i === 1 && axis[1] ? 'inner' : null}, text))));
  });
}
