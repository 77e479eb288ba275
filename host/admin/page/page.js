'use strict';

// The page reads the same API as everybody else: one stream for how things stand, plain
// requests for the rest. All text from messages and guests goes in as text, never as HTML.

const $ = (id) => document.getElementById(id);
const view = $('main');

let overview = null;      // the latest
let before = null;        // the one before it, for rates
let token = sessionStorage.getItem('guesthand-token') || '';
let draw = () => {};      // draws the view that is open, when the overview changes
let drawn = 0;            // counts views, so that a late answer does not land in another one

// --- Small things -------------------------------------------------------------------------

// el makes an element: el('td', {class: 'number'}, 'text', child).
function el(name, attributes, ...children) {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes || {})) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (v === true) e.setAttribute(k, '');
    else if (v !== false && v != null) e.setAttribute(k, v);
  }
  e.append(...children.flat().filter((c) => c != null && c !== false));
  return e;
}

function table(heads, rows, caption) {
  return el('div', {class: 'wide'}, el('table', {'aria-label': caption},
    el('thead', {}, el('tr', {}, heads.map((h) => el('th', {scope: 'col', class: h[1]}, h[0])))),
    el('tbody', {}, rows)));
}

const num = (n) => el('td', {class: 'number'}, typeof n === 'number' ? n.toLocaleString('en') : n);
const cell = (...c) => el('td', {}, ...c);
const text = (...c) => el('td', {class: 'text'}, ...c);
const empty = (...c) => el('p', {class: 'empty'}, ...c);
const badge = (word, kind) => el('span', {class: 'badge ' + (kind || '')}, word);

const kinds = {success: 'good', acked: 'good', succeeded: 'good', delay: 'warn', pause: 'warn', interrupted: 'warn', pending: 'warn',
  retry: 'warn', 'retry-after': 'warn', stalled: 'bad', 'lease-lost': 'bad', permanent: 'bad', reject: 'bad', rejected: 'bad', dead: 'bad', cancelled: 'warn'};

function when(t) {
  if (!t || t.startsWith('0001')) return '';
  return el('time', {datetime: t, title: t}, new Date(t).toLocaleString(undefined, {dateStyle: 'short', timeStyle: 'medium'}));
}

function length(ms) {
  if (ms < 1) return '<1 ms';
  if (ms < 1000) return Math.round(ms) + ' ms';
  if (ms < 60000) return (ms / 1000).toFixed(1) + ' s';
  if (ms < 3600000) return Math.round(ms / 60000) + ' min';
  if (ms < 86400000 * 2) return (ms / 3600000).toFixed(1) + ' h';
  return Math.round(ms / 86400000) + ' d';
}

const mib = (n) => (n / (1 << 20)).toFixed(n < 10 << 20 ? 1 : 0) + ' MiB';
const age = (t) => (t && !t.startsWith('0001') ? length(Date.now() - new Date(t)) : '');

function complain(what, err) {
  const a = $('alert');
  a.hidden = !err;
  a.textContent = err ? what + ': ' + err.message : '';
}

// --- The API ------------------------------------------------------------------------------

function ask(path, options) {
  const headers = token ? {Authorization: 'Bearer ' + token} : {};
  return fetch(path, {cache: 'no-store', ...options, headers});
}

async function api(path, method) {
  const res = await ask(path, {method: method || 'GET'});
  if (res.status === 401) { await askToken(); return api(path, method); }
  const body = await res.json().catch(() => ({}));
  if (!res.ok) throw new Error(body.error ? body.error.text : res.status + ' ' + res.statusText);
  return body;
}

let asking = null;
function askToken() {
  asking = asking || new Promise((done) => {
    const d = $('token');
    d.addEventListener('close', () => {
      token = $('token-value').value;
      sessionStorage.setItem('guesthand-token', token);
      asking = null;
      done();
    }, {once: true});
    d.showModal();
  });
  return asking;
}

const q = encodeURIComponent;

// follow keeps the stream open. EventSource cannot send a token, so this reads it by hand.
async function follow() {
  for (let wait = 500; ; wait = Math.min(2 * wait, 10000)) {
    try {
      const res = await ask('/v1/live');
      if (res.status === 401) { await askToken(); wait = 250; continue; }
      if (!res.ok) throw new Error((await res.json()).error.text);
      const reader = res.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ''; ;) {
        const {value, done} = await reader.read();
        if (done) break;
        rest += value;
        const parts = rest.split('\n\n');
        rest = parts.pop();
        for (const part of parts) {
          const data = part.split('\n').find((l) => l.startsWith('data: '));
          if (data) hear(JSON.parse(data.slice(6)));
        }
        wait = 500;
      }
    } catch (err) {
      console.debug(err);
    }
    const s = $('status');
    s.textContent = 'host does not answer, trying again';
    s.className = 'away';
    await new Promise((done) => setTimeout(done, wait));
  }
}

function hear(o) {
  before = overview;
  overview = o;
  const s = $('status');
  s.className = o.unready.length ? 'away' : '';
  s.textContent = o.unready.length ? 'not ready: ' + o.unready.join('; ') : 'ready, live';
  $('footer').textContent = `guesthand ${o.version} on ${o.worker}, up ${age(o.started)}` +
    (o.ledger_dropped ? `; ${o.ledger_dropped} runs are missing in the ledger` : '');
  draw();
}

// --- Doing things -------------------------------------------------------------------------

function sure(title, what, yes) {
  const d = $('confirm');
  $('confirm-title').textContent = title;
  $('confirm-text').textContent = what;
  $('confirm-yes').textContent = yes;
  d.returnValue = 'no';
  d.showModal();
  return new Promise((done) => d.addEventListener('close', () => done(d.returnValue === 'yes'), {once: true}));
}

// act runs an action of a button, which is off meanwhile, and shows what went wrong.
function act(label, action, kind) {
  const b = el('button', {class: kind, onclick: async () => {
    b.disabled = true;
    try { await action(); complain(); } catch (err) { complain(label, err); } finally { b.disabled = false; }
  }}, label);
  return b;
}

// --- Queues -------------------------------------------------------------------------------

// rate is how often something grew by a second, from the last two overviews.
function rate(get) {
  if (!before) return null;
  const seconds = (new Date(overview.now) - new Date(before.now)) / 1000;
  return seconds > 0 ? Math.max(0, get(overview) - get(before)) / seconds : null;
}

const jobsOf = (o, queue) => (o.queues.find((x) => x.queue === queue) || {jobs: []}).jobs;
const total = (jobs, word) => jobs.reduce((n, j) => n + (word ? j.outcomes[word] || 0 : Object.values(j.outcomes).reduce((a, b) => a + b, 0)), 0);
const perSecond = (r) => (r == null ? '' : r >= 10 ? Math.round(r) + '/s' : r.toFixed(1) + '/s');

function outcomeBar(jobs) {
  const all = total(jobs);
  const good = total(jobs, 'success');
  const waits = ['delay', 'pause', 'interrupted'].reduce((n, w) => n + total(jobs, w), 0);
  if (!all) return el('span', {class: 'muted'}, 'no runs yet');
  const label = jobs.flatMap((j) => Object.entries(j.outcomes)).reduce((m, [w, n]) => ({...m, [w]: (m[w] || 0) + n}), {});
  const words = Object.entries(label).sort((a, b) => b[1] - a[1]).map(([w, n]) => w + ' ' + n.toLocaleString('en')).join(', ');
  const part = (n, c) => { const i = el('i', {class: c}); i.style.flexGrow = n; return i; };
  return el('span', {title: words}, el('span', {class: 'bar', 'aria-hidden': 'true'}, part(good, ''), part(waits, 'warn'), part(all - good - waits, 'bad')),
    el('span', {class: 'muted'}, words));
}

function pauseText(s) {
  return s.pauses.map((p) => (p.job ? p.job + ' paused' : 'paused') + (p.until ? ' until ' + new Date(p.until).toLocaleTimeString() : '') +
    (p.by_handler ? ' by its handler' : '')).join(', ');
}

function queuesView() {
  draw = () => {
    if (!overview) return;
    if (!overview.queues.length) return view.replaceChildren(empty('There is no queue in the configuration.'));
    const rows = overview.queues.map((s) => {
      const pauses = s.pauses || [];
      return el('tr', {},
        cell(el('strong', {}, s.queue), el('br', {}), el('span', {class: 'muted'}, s.broker + ', ' + s.driver),
          s.error ? el('div', {class: 'bad'}, s.error) : null,
          pauses.length ? el('div', {class: 'warn'}, pauseText({pauses})) : null),
        num(s.error ? '?' : s.depth), num(s.running), num(s.delayed),
        el('td', {class: 'number'}, s.dead ? el('a', {href: '#/dead/' + q(s.queue)}, s.dead.toLocaleString('en')) : '0'),
        num(s.oldest && s.depth ? age(s.oldest) : ''),
        num(perSecond(rate((o) => total(jobsOf(o, s.queue))))),
        cell(outcomeBar(s.jobs)),
        cell(el('div', {class: 'actions'}, pauses.length
          ? act('Resume', () => api(`/v1/queues/${q(s.queue)}/resume`, 'POST'))
          : act('Pause', async () => {
            if (await sure('Pause ' + s.queue + '?', 'This host takes nothing more from it until you resume it. Other hosts go on.', 'Pause')) {
              await api(`/v1/queues/${q(s.queue)}/pause`, 'POST');
            }
          }))));
    });
    keepFocus(() => view.replaceChildren(el('div', {class: 'row'}, el('h2', {}, 'Queues')),
      table([['Queue'], ['Depth', 'number'], ['Running here', 'number'], ['Delayed', 'number'], ['Dead', 'number'], ['Oldest', 'number'], ['Rate', 'number'], ['Outcomes since start'], ['']], rows, 'Queues')));
  };
  draw();
}

// keepFocus draws anew without taking the keyboard's place away.
function keepFocus(redraw) {
  const at = [...view.querySelectorAll('a,button,input,select')].indexOf(document.activeElement);
  redraw();
  if (at >= 0) view.querySelectorAll('a,button,input,select')[at]?.focus();
}

// --- Handlers -----------------------------------------------------------------------------

function handlersView() {
  draw = () => {
    if (!overview) return;
    if (!overview.handlers.length) {
      return view.replaceChildren(empty('There is no handler yet. Copy a module such as ', el('code', {}, 'resize.wasm'), ' into the plug-in directory, and it serves the job ', el('code', {}, 'resize'), '.'));
    }
    const rows = overview.handlers.map((h) => {
      const jobs = (o) => o.queues.flatMap((x) => x.jobs.filter((j) => j.job === h.job));
      const sum = (o, f) => jobs(o).reduce((n, j) => n + j[f], 0);
      const runs = before ? sum(overview, 'runs') - sum(before, 'runs') : 0;
      const mean = runs > 0 ? (sum(overview, 'run_ms') - sum(before, 'run_ms')) / runs : sum(overview, 'runs') ? sum(overview, 'run_ms') / sum(overview, 'runs') : null;
      const ok = h.state === 'ready';
      return el('tr', {},
        cell(el('strong', {}, h.job), el('br', {}), el('span', {class: 'muted mono'}, (h.digest || '').slice(0, 12))),
        cell(badge(h.state, ok ? (h.error ? 'warn' : 'good') : 'bad'), h.pending ? el('div', {class: 'muted'}, 'a new version is loading') : null),
        cell(h.dialect, el('div', {class: 'muted', title: h.instances_why}, h.instances)),
        num(sum(overview, 'runs')), num(perSecond(rate((o) => sum(o, 'runs')))), num(mean == null ? '' : length(mean)),
        text(h.error ? el('div', {class: 'bad'}, h.error) : null,
          h.last_error ? el('div', {}, el('a', {href: '#/runs?job=' + q(h.job)}, h.last_error), ' ', el('span', {class: 'muted'}, age(h.last_error_at) + ' ago')) : null));
    });
    keepFocus(() => view.replaceChildren(el('div', {class: 'row'}, el('h2', {}, 'Handlers')),
      table([['Handler'], ['State'], ['Dialect'], ['Runs', 'number'], ['Rate', 'number'], ['Mean run', 'number'], ['Latest failure']], rows, 'Handlers')));
  };
  draw();
}

// --- Runs ---------------------------------------------------------------------------------

const outcomes = ['success', 'retry', 'retry-after', 'delay', 'permanent', 'reject', 'pause', 'interrupted', 'stalled', 'lease-lost', 'cancelled'];
const page = 100;

async function runsView(params) {
  const mine = drawn;
  const filter = {queue: params.get('queue') || '', job: params.get('job') || '', outcome: params.get('outcome') || ''};
  const set = (name) => (e) => {
    const p = new URLSearchParams(Object.entries({...filter, [name]: e.target.value}).filter(([, v]) => v));
    location.hash = '#/runs' + (p.size ? '?' + p : '');
  };
  const pick = (name, label, options) => el('label', {}, label, el('select', {onchange: set(name)},
    el('option', {value: ''}, 'all'), options.map((o) => el('option', {value: o, selected: o === filter[name]}, o))));
  const list = el('div', {}, empty('Loading.'));
  const find = el('input', {placeholder: 'message id', size: 36, 'aria-label': 'message id'});
  const names = (get) => [...new Set((overview ? get(overview) : []).concat(filter.job ? [filter.job] : []))];
  view.replaceChildren(el('div', {class: 'row'}, el('h2', {}, 'Runs'),
    pick('queue', 'Queue', (overview ? overview.queues : []).map((x) => x.queue)),
    pick('job', 'Job', names((o) => o.handlers.map((h) => h.job))),
    pick('outcome', 'Outcome', outcomes),
    el('form', {onsubmit: (e) => { e.preventDefault(); if (find.value.trim()) location.hash = '#/runs/' + q(find.value.trim()); }},
      el('label', {}, 'Message', find))), list);
  let rows = [], more = false, older = false;
  const load = async (cut) => {
    const p = new URLSearchParams(Object.entries({...filter, limit: page}).filter(([, v]) => v));
    if (cut) p.set('before', cut);
    return (await api('/v1/runs?' + p)).items;
  };
  const show = () => {
    if (!rows.length) return list.replaceChildren(empty(Object.values(filter).some(Boolean) ? 'No run matches.' : 'Nothing has run yet.'));
    keepFocus(() => list.replaceChildren(table([['Finished'], ['Queue'], ['Job'], ['Attempt', 'number'], ['Outcome'], ['Settlement'], ['Took', 'number'], ['Message'], ['Error']],
      rows.map((r) => el('tr', {}, cell(when(r.finished)), cell(r.queue), cell(r.job), num(r.attempt), cell(badge(r.outcome, kinds[r.outcome])), cell(r.settlement),
        num(r.started ? length(new Date(r.finished) - new Date(r.started)) : ''), cell(el('a', {class: 'mono', href: '#/runs/' + q(r.id)}, r.id)), text(r.error.split('\n')[0]))), 'Runs'),
    more ? el('p', {}, act('Older runs', async () => {
      const next = await load(rows[rows.length - 1].finished);
      older = true;
      rows = rows.concat(next).slice(-20 * page);
      more = next.length === page;
      show();
    })) : el('p', {class: 'muted'}, 'These are all.')));
  };
  const refresh = async () => {
    if (older || mine !== drawn || document.hidden) return;
    try {
      rows = await load();
      more = rows.length === page;
      if (mine === drawn && !older) show();
    } catch (err) {
      if (mine === drawn) list.replaceChildren(empty(err.message));
    }
  };
  await refresh();
  let last = overview && overview.now;
  draw = () => {
    if (overview.now !== last && total(overview.queues.flatMap((x) => x.jobs)) !== (before ? total(before.queues.flatMap((x) => x.jobs)) : -1)) refresh();
    last = overview.now;
  };
}

async function messageView(id) {
  const mine = drawn;
  const f = await api('/v1/messages/' + q(id));
  if (mine !== drawn) return;
  const runs = f.runs.slice().reverse();
  const steps = runs.map((r) => el('li', {class: kinds[r.outcome]},
    el('div', {}, el('strong', {}, 'Attempt ' + r.attempt + ': ' + r.outcome), r.cause && r.cause !== 'returned' ? ' (' + r.cause + ')' : '',
      ' then ', badge(r.settlement, kinds[r.settlement]), r.delay_ms ? ', asked to wait ' + length(r.delay_ms) : ''),
    el('div', {class: 'muted'}, when(r.finished), r.started ? ', took ' + length(new Date(r.finished) - new Date(r.started)) : '', ', by ' + r.worker, r.digest ? ', version ' + r.digest.slice(0, 12) : ''),
    r.error ? el('pre', {}, r.error) : null,
    r.result || r.result_base64 ? el('details', {}, el('summary', {}, 'Result'), el('pre', {}, r.result || r.result_base64)) : null));
  view.replaceChildren(el('div', {class: 'row'}, el('h2', {}, 'Message ', el('span', {class: 'mono'}, f.id)), badge(f.state, kinds[f.state])),
    steps.length ? el('ol', {class: 'timeline'}, steps) : empty('No run of it is known here. It may be waiting, on another host, or older than the ledger keeps.'),
    ...f.dead.map((d) => letter(d)));
}

// --- Dead letters -------------------------------------------------------------------------

function payloadOf(d) {
  if (d.payload != null) {
    let shown = d.payload;
    try { shown = JSON.stringify(JSON.parse(d.payload), null, 2); } catch { /* no JSON: as it stands */ }
    return el('pre', {}, shown || '(empty)');
  }
  return el('pre', {}, 'base64 ' + (d.payload_base64 || ''));
}

function letter(d, done) {
  const path = `/v1/queues/${q(d.queue)}/dead/${q(d.entry)}`;
  const after = done || (() => { location.hash = '#/dead/' + q(d.queue); });
  return el('section', {}, el('h3', {}, 'Dead letter ', el('span', {class: 'mono'}, d.entry)),
    el('dl', {}, ...[['Reason', d.reason], ['Job', d.job], ['Message', el('a', {class: 'mono', href: '#/runs/' + q(d.id)}, d.id)], ['Died', when(d.died)],
      ['Attempt', String(d.attempt)], ['Counts', `${d.failures} failures, ${d.delays} delays, ${d.stalls} stalls, ${d.interruptions} interruptions`],
      ['Replays', String(d.replays)], ['Version', el('span', {class: 'mono'}, d.digest.slice(0, 12))], ['Worker', d.worker],
      ['Headers', Object.entries(d.headers).map(([k, v]) => el('div', {class: 'mono'}, k + ': ' + v.join(', ')))]]
      .flatMap(([k, v]) => [el('dt', {}, k), el('dd', {}, v)])),
    payloadOf(d),
    d.errors.length > 1 ? el('details', {}, el('summary', {}, d.errors.length + ' failures'), d.errors.map((e) => el('pre', {}, `attempt ${e.attempt}: ${e.text}`))) : null,
    el('p', {class: 'actions'},
      act('Replay', async () => { await api(path + '/replay', 'POST'); after(); }, 'strong'),
      act('Drop', async () => {
        if (await sure('Drop this dead letter?', 'Its message is gone for good.', 'Drop')) { await api(path, 'DELETE'); after(); }
      }, 'danger')));
}

async function deadView(queue) {
  const mine = drawn;
  const queues = (overview || await api('/v1/overview')).queues;
  if (!queue) {
    const first = queues.find((x) => x.dead) || queues[0];
    if (!first) return view.replaceChildren(empty('There is no queue in the configuration.'));
    queue = first.queue;
  }
  const chosen = new Set();
  let open = null, rows = [], more = false;
  const base = `/v1/queues/${q(queue)}/dead`;
  const load = async (after) => (await api(base + '?limit=100' + (after ? '&after=' + q(after) : ''))).items;
  const each = async (verb, method, path) => {
    let n = 0;
    for (const entry of [...chosen]) { await api(`${base}/${q(entry)}${path}`, method); chosen.delete(entry); n++; }
    await reload();
    $('status').textContent = `${n} ${verb}`;
  };
  const all = async (verb, method, path) => {
    let n = 0;
    for (let items; (items = await load()).length; ) {
      for (const d of items) { await api(`${base}/${q(d.entry)}${path}`, method); $('status').textContent = `${++n} ${verb}`; }
    }
    chosen.clear();
    await reload();
  };
  const reload = async () => {
    rows = await load();
    more = rows.length === 100;
    if (mine === drawn) show();
  };
  const show = () => {
    const list = rows.length ? [
      el('div', {class: 'row'},
        act('Replay chosen', async () => { if (chosen.size) await each('replayed', 'POST', '/replay'); }),
        act('Drop chosen', async () => {
          if (chosen.size && await sure(`Drop ${chosen.size} dead letters?`, 'Their messages are gone for good.', 'Drop')) await each('dropped', 'DELETE', '');
        }, 'danger'),
        act('Replay all', async () => {
          if (await sure('Replay all dead letters of ' + queue + '?', 'Each runs again with a fresh budget.', 'Replay all')) await all('replayed', 'POST', '/replay');
        })),
      table([['Chosen'], ['Died'], ['Job'], ['Reason'], ['Attempt', 'number'], ['Message']], rows.map((d) => el('tr', {},
        cell(el('input', {type: 'checkbox', 'aria-label': 'choose ' + d.id, checked: chosen.has(d.entry), onchange: (e) => (e.target.checked ? chosen.add(d.entry) : chosen.delete(d.entry))})),
        cell(when(d.died)), cell(d.job), text(d.reason), num(d.attempt),
        cell(el('button', {class: 'mono', 'aria-expanded': String(open === d.entry), onclick: () => { open = open === d.entry ? null : d.entry; show(); }}, d.id)))), 'Dead letters'),
      more ? el('p', {}, act('More', async () => { const next = await load(rows[rows.length - 1].entry); rows = rows.concat(next); more = next.length > 0; show(); })) : null,
      open ? letter(rows.find((d) => d.entry === open), () => { open = null; reload(); }) : null,
    ] : [empty('No dead letters in ' + queue + '.')];
    keepFocus(() => view.replaceChildren(el('div', {class: 'row'}, el('h2', {}, 'Dead letters'),
      el('label', {}, 'Queue', el('select', {onchange: (e) => { location.hash = '#/dead/' + q(e.target.value); }},
        queues.map((x) => el('option', {value: x.queue, selected: x.queue === queue}, x.queue + (x.dead ? ` (${x.dead})` : '')))))),
    ...list.filter(Boolean)));
  };
  await reload();
}

// --- Setup --------------------------------------------------------------------------------

async function setupView() {
  const mine = drawn;
  const s = await api('/v1/setup');
  if (mine !== drawn) return;
  const yes = (b) => (b ? 'yes' : 'no');
  view.replaceChildren(el('h2', {}, 'Setup'), el('p', {class: 'muted'}, 'What ', el('code', {}, s.file || 'the defaults'), ' makes of it all.'),
    el('h3', {}, 'Queues'),
    table([['Queue'], ['Concurrency', 'number'], ['Lease', 'number'], ['Handler'], ['Retry'], ['Exact counts'], ['Fenced'], ['Longest native delay', 'number'], ['To mend']],
      s.queues.map((x) => el('tr', {}, cell(el('strong', {}, x.queue), el('br', {}), el('span', {class: 'muted'}, x.broker + ', ' + x.driver)), num(x.concurrency), num(length(x.lease_ms)),
        cell(x.handler || el('span', {class: 'muted'}, 'by job')), cell(x.retry), cell(yes(x.caps.ExactCounts)), cell(yes(x.caps.Fenced)),
        num(x.caps.MaxDelay ? length(x.caps.MaxDelay / 1e6) : 'any'), text(x.findings.map((f) => el('div', {class: 'warn'}, f))))), 'Queues'),
    el('h3', {}, 'Handlers'),
    s.handlers.length ? table([['Handler'], ['Timeout', 'number'], ['Memory', 'number'], ['Concurrency', 'number'], ['Rate'], ['Instances'], ['Retry'], ['May']],
      s.handlers.map((h) => el('tr', {}, cell(el('strong', {}, h.job)), num(length(h.timeout_ms)), num(mib(h.memory_bytes)), num(h.concurrency || 'queue'), cell(h.rate || 'any'),
        cell(h.instances), cell(h.retry || el('span', {class: 'muted'}, "its queue's")), cell(h.grants.join(', ') || el('span', {class: 'muted'}, 'compute')))), 'Handlers')
      : empty('There is no handler yet.'));
}

// --- Ways ---------------------------------------------------------------------------------

async function route() {
  drawn++;
  draw = () => {};
  complain();
  const [path, query] = location.hash.slice(1).split('?');
  const [, name, rest] = path.match(/^\/([^/]*)\/?(.*)$/) || [null, 'queues', ''];
  for (const a of document.querySelectorAll('nav a')) {
    if (a.hash === '#/' + name) a.setAttribute('aria-current', 'page');
    else a.removeAttribute('aria-current');
  }
  const arg = rest ? decodeURIComponent(rest) : '';
  const views = {queues: queuesView, handlers: handlersView, runs: () => (arg ? messageView(arg) : runsView(new URLSearchParams(query || ''))), dead: () => deadView(arg), setup: setupView};
  view.replaceChildren(empty('Loading.'));
  try {
    await (views[name] || queuesView)();
  } catch (err) {
    view.replaceChildren(empty(err.message));
  }
}

addEventListener('hashchange', () => { route(); view.focus({preventScroll: true}); });
if (!location.hash) history.replaceState(null, '', '#/queues');
route();
follow();
