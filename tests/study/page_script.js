// The script of a report's page on as much of a document as it asks for: hover values, logarithmic axes, smoothing.
// node page_script.js PAGE
'use strict';
const assert = require('assert'), fs = require('fs'), vm = require('vm');
const html = fs.readFileSync(process.argv[2], 'utf8');

class Element {
  constructor(name) { Object.assign(this, {tagName: name, attributes: {}, children: [], style: {}, own: '', namespaceURI: 'svg'}); }
  get dataset() { return Object.fromEntries(Object.entries(this.attributes).filter(([k]) => k.startsWith('data-')).map(([k, v]) => [k.slice(5), v])); }
  getAttribute(name) { return name in this.attributes ? this.attributes[name] : null; }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...more) { this.children.push(...more); }
  replaceChildren() { this.children = []; }
  get textContent() { return this.own + this.children.map(c => typeof c == 'string' ? c : c.textContent).join(''); }
  set textContent(text) { this.children = []; this.own = text; }
  set className(name) { this.attributes.class = name; }
  get all() { return this.children.filter(c => c instanceof Element).flatMap(c => [c, ...c.all]); }
  matches(selector) {
    const [name, kind] = selector.split('.');
    return (!name || this.tagName == name) && (!kind || (this.attributes.class || '').split(' ').includes(kind));
  }
  querySelectorAll(selector) { return this.all.filter(e => e.matches(selector)); }
  querySelector(selector) { return this.querySelectorAll(selector)[0] || null; }
  getBoundingClientRect() { return {left: 0, top: 0, width: 560, height: 400}; }
  get offsetWidth() { return 100; }
}

const plain = text => text.replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&quot;/g, '"').replace(/&#39;/g, "'").replace(/&amp;/g, '&');
const body = new Element('body'), open = [body];
const figures = html.match(/<figure>[^]*?<\/figure>/g).join('');
for (const [, end, name, attributes, is_empty, text] of figures.matchAll(/<(\/?)(\w+)((?:\s[^<>]*?)?)(\/?)>([^<]*)/g)) {
  if (end) {
    assert.equal(open.pop().tagName, name);
  } else {
    const e = new Element(name);
    for (const [, key, value] of attributes.matchAll(/([\w:-]+)="([^"]*)"/g)) e.attributes[key] = plain(value);
    open[open.length - 1].append(e);
    if (!is_empty) { open.push(e); e.own = plain(text); }
  }
}
assert.equal(open.length, 1, 'the drawings are whole');
const document = {querySelectorAll: s => body.querySelectorAll(s), createElement: n => new Element(n), createElementNS: (_, n) => new Element(n)};
vm.runInNewContext(/<script>\n([^]*)<\/script>/.exec(html)[1], {document});

let charts = 0;
for (const figure of body.querySelectorAll('figure')) {
  const svg = figure.querySelector('svg'), curve = svg.querySelector('polyline.curve'), tip = figure.querySelector('div.tip');
  if (!curve) continue;
  const values = curve.dataset.v.split(';').filter(p => p).map(p => p.split(' ').map(Number));
  const is_plain = values.every(p => p[1] > 0) && values[0][1] != values[9][1];
  if (values.length < 10 || !is_plain || svg.querySelectorAll('.curve').length > 1) continue;
  ++charts;
  const drawn = () => curve.getAttribute('points').split(' ').map(p => p.split(',').map(Number));
  const hover = i => {
    svg.onpointermove({clientX: drawn()[i][0], clientY: 100});
    assert.equal(tip.hidden, false);
    return tip.textContent.split('\n');
  };
  const near = (a, b) => assert.ok(Math.abs(a - b) <= 1e-5 * Math.max(1, Math.abs(b)), `${a} is not ${b}`);
  // Under the pointer: where on the x axis, the value, the name.
  for (const i of [0, 4, values.length - 1]) {
    const [where, row] = hover(i);
    assert.ok(where.endsWith(' ' + values[i][0]), where);
    near(parseFloat(row), values[i][1]);
    assert.ok(row.endsWith('  ' + curve.dataset.name), row);
  }
  svg.onpointerleave();
  assert.equal(tip.hidden, true);
  svg.onpointermove({clientX: 1, clientY: 100});  // left of the frame
  assert.equal(tip.hidden, true);
  // A logarithmic axis: distances of logarithms, and back.
  const at = i => drawn()[i][1], part = f => (f(values[0][1]) - f(values[4][1])) / (f(values[0][1]) - f(values[9][1]));
  const title = svg.querySelector('text.y'), name = title.textContent.replace(', log scale', '');
  const button = figure.querySelectorAll('button').find(b => b.textContent == 'log y');
  let is_log = button.getAttribute('aria-pressed') == 'true';
  for (let click = 0; click < 2; ++click) {
    button.onclick();
    is_log = !is_log;
    assert.equal(button.getAttribute('aria-pressed'), String(is_log));
    assert.equal(title.textContent, name + (is_log ? ', log scale' : ''));
    const scale = is_log ? Math.log10 : v => v;
    assert.ok(Math.abs((at(0) - at(4)) / (at(0) - at(9)) - part(scale)) < 1e-9);
    assert.ok(svg.querySelector('.axes').children.length > 3, 'the axes are drawn anew');
    near(parseFloat(hover(4)[1]), values[4][1]);
  }
  // Smoothing by s: the mean with weights s^k of the values so far, k steps ago.
  const slider = figure.querySelector('input');
  slider.value = '0.5';
  slider.oninput();
  near(parseFloat(hover(0)[1]), values[0][1]);
  near(parseFloat(hover(2)[1]), (values[2][1] + 0.5 * values[1][1] + 0.25 * values[0][1]) / 1.75);
  slider.value = '0';
  slider.oninput();
  near(parseFloat(hover(2)[1]), values[2][1]);
}
assert.ok(charts > 0, 'a chart of one curve');
console.log(`hover, axes and smoothing of ${charts} charts`);
