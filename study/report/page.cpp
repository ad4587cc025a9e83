#include "study/report/page.h"

#include <fmt/core.h>

#include "study/report/chart.h"

namespace hebb {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{}</title>
)";
constexpr const char* kStyle =
    "<style>body{font-family:sans-serif;max-width:1400px;margin:1em auto;padding:0 1em;line-height:1.4}"
    "p{max-width:1000px}figure{margin:0;position:relative;max-width:760px}svg{display:block;width:100%;max-width:760px;"
    "height:auto}.wide{overflow-x:auto}"
    ".drawings,.small{display:grid;gap:.5em 1.5em;align-items:start;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}"
    ".small{grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}"
    "table{border-collapse:separate;border-spacing:0;font-size:90%}"
    "td,th{padding:.2em .6em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}"
    "th{white-space:normal;vertical-align:bottom}.text{text-align:left}"
    ".tools{display:flex;flex-wrap:wrap;gap:.2em .8em;align-items:center;font-size:80%;margin:0 0 .8em .8em}"
    ".tools button[aria-pressed=true]{background:#1f6fb2;color:white}"
    ".tip{position:absolute;pointer-events:none;background:white;border:1px solid #888;padding:.2em .5em;font-size:80%;"
    "white-space:pre;max-width:95%;overflow:hidden;z-index:1}"
    "td:first-child,th:first-child{position:sticky;left:0;background:white}"
    "@media(max-width:600px){table{font-size:80%}td,th{padding:.2em .35em}"
    "td:first-child,th:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8em;max-width:38vw}}</style>\n";

/// Of the line charts: values under the pointer, buttons for logarithmic axes, a smoothing. Without it the page is
/// whole. The values are those of the attributes that svg_chart() writes; means and bands are not smoothed apart.
constexpr const char* kScript = R"(<script>
for (const figure of document.querySelectorAll('figure')) {
  const svg = figure.querySelector('svg'), chart = svg.querySelector('.chart');
  if (!chart) continue;
  const [left, top, width, height] = chart.dataset.frame.split(' ').map(Number);
  const read = e => e.dataset.v.split(';').filter(p => p).map(p => p.split(' ').map(Number));
  const curves = [...chart.querySelectorAll('.curve')].map(e => ({e, points: read(e), line: e.tagName == 'polyline'}));
  const bands = [...chart.querySelectorAll('.band')].map(e => ({e, points: read(e)}));
  const log = [...chart.dataset.log].map(c => c == '1'), axes = chart.querySelector('.axes');
  const names = ['x', 'y'].map(c => { const e = chart.querySelector('text.' + c); return {e, text: e.textContent.replace(/, log scale$/, '')}; });
  let range = chart.dataset.range.split(' ').map(Number), smoothing = 0;
  const scaled = (v, axis) => log[axis] ? Math.log10(v) : v;
  const px = v => left + (scaled(v, 0) - range[0]) / (range[1] - range[0]) * width;
  const py = v => top + height - (scaled(v, 1) - range[2]) / (range[3] - range[2]) * height;
  const smooth = points => {  // an exponential mean without the bias of its start
    let sum = 0, weight = 0;
    return points.map(p => { sum = smoothing * sum + p[1]; weight = smoothing * weight + 1; return [p[0], sum / weight]; });
  };
  const shown = c => c.line && smoothing > 0 ? smooth(c.points) : c.points;
  const is_drawn = p => isFinite(scaled(p[0], 0)) && isFinite(scaled(p[1], 1));
  const make = (name, attributes, text) => {
    const e = document.createElementNS(svg.namespaceURI, name);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (text != null) e.textContent = text;
    return e;
  };
  const steps = (low, high, count) => {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw)), r = raw / power;
    const step = power * (r < 1.5 ? 1 : r < 3.5 ? 2 : r < 7.5 ? 5 : 10), found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) found.push(i * step);
    return found;
  };
  const ticks = (axis, count) => {
    const low = range[2 * axis], high = range[2 * axis + 1];
    if (!log[axis]) return steps(low, high, count);
    if (high - low < 1) return steps(10 ** low, 10 ** high, count).filter(v => v > 0);
    const found = [];
    for (let e = Math.floor(low); e <= high; e += high - low > 8 ? 2 : 1)
      for (const m of high - low < 2.5 ? [1, 2, 5] : [1])
        if (e + Math.log10(m) >= low - 1e-9 && e + Math.log10(m) <= high + 1e-9) found.push(m * 10 ** e);
    return found;
  };
  const draw = () => {
    const all = curves.flatMap(c => shown(c).filter(is_drawn));
    if (!all.length) return;
    range = [0, 1].flatMap(axis => {
      const v = all.map(p => scaled(p[axis], axis));
      let low = v.reduce((a, b) => Math.min(a, b)), high = v.reduce((a, b) => Math.max(a, b));
      if (low == high) { low -= 0.5 * Math.max(1e-9, Math.abs(low)); high += 0.5 * Math.max(1e-9, Math.abs(high)); }
      const margin = axis == 1 || curves.some(c => !c.line) ? 0.03 * (high - low) : 0;
      return [low - margin, high + margin];
    });
    axes.replaceChildren();
    let end = -Infinity;
    for (const t of ticks(0, 5)) {
      const label = String(+t.toPrecision(6)), x = px(t), half = 3.7 * label.length;
      if (x - half < end + 8) continue;
      end = x + half;
      axes.append(make('line', {x1: x, x2: x, y1: top, y2: top + height, stroke: '#e4e4e4'}),
                  make('text', {x: Math.min(x, 558 - half), y: top + height + 18, 'text-anchor': 'middle'}, label));
    }
    end = Infinity;
    for (const t of ticks(1, 6)) {
      const y = py(t);
      if (end - y < 16) continue;
      end = y;
      axes.append(make('line', {x1: left, x2: left + width, y1: y, y2: y, stroke: '#e4e4e4'}),
                  make('text', {x: left - 8, y: y + 4, 'text-anchor': 'end'}, String(+t.toPrecision(6))));
    }
    names.forEach((n, axis) => { n.e.textContent = n.text + (log[axis] ? ', log scale' : ''); });
    for (const c of curves) {
      const points = shown(c);
      if (c.line) c.e.setAttribute('points', points.filter(is_drawn).map(p => px(p[0]) + ',' + py(p[1])).join(' '));
      else [...c.e.children].forEach((dot, i) => {
        const is_here = is_drawn(points[i]);
        dot.setAttribute('visibility', is_here ? 'visible' : 'hidden');
        if (is_here) { dot.setAttribute('cx', px(points[i][0])); dot.setAttribute('cy', py(points[i][1])); }
      });
    }
    for (const b of bands) {
      b.e.setAttribute('visibility', smoothing > 0 ? 'hidden' : 'visible');  // an interval of means, not of smoothed ones
      const at = (x, v, edge) => px(x) + ',' + (isFinite(scaled(v, 1)) ? py(v) : edge), here = b.points.filter(p => isFinite(scaled(p[0], 0)));
      b.e.setAttribute('points', [...here.map(p => at(p[0], p[1], top + height)), ...here.slice().reverse().map(p => at(p[0], p[2], top))].join(' '));
    }
  };
  const tools = document.createElement('div');
  tools.className = 'tools';
  ['x', 'y'].forEach((name, axis) => {
    if (!log[axis] && !curves.some(c => c.points.some(p => p[axis] > 0))) return;
    const button = document.createElement('button');
    button.textContent = 'log ' + name;
    button.setAttribute('aria-pressed', log[axis]);
    button.onclick = () => { log[axis] = !log[axis]; button.setAttribute('aria-pressed', log[axis]); draw(); };
    tools.append(button);
  });
  if (curves.some(c => c.line && c.points.length > 9)) {
    const label = document.createElement('label'), slider = document.createElement('input'), value = document.createElement('span');
    Object.assign(slider, {type: 'range', min: 0, max: 0.99, step: 0.01, value: 0});
    slider.oninput = () => { smoothing = +slider.value; value.textContent = smoothing > 0 ? ' ' + smoothing : ''; draw(); };
    label.append('smoothing ', slider, value);
    tools.append(label);
  }
  figure.append(tools);
  const tip = document.createElement('div'), cursor = make('line', {y1: top, y2: top + height, stroke: '#888', visibility: 'hidden'});
  tip.className = 'tip';
  tip.hidden = true;
  figure.append(tip);
  chart.append(cursor);
  const hide = () => { tip.hidden = true; cursor.setAttribute('visibility', 'hidden'); };
  svg.onpointerleave = hide;
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * 560;
    const nearest = points => points.reduce((a, b) => Math.abs(px(b[0]) - at) < Math.abs(px(a[0]) - at) ? b : a);
    const found = curves.map(c => ({c, points: shown(c).filter(is_drawn)})).filter(f => f.points.length)
                        .map(f => ({c: f.c, p: nearest(f.points)})).filter(f => Math.abs(px(f.p[0]) - at) < 20);
    if (at < left || at > left + width || !found.length) { hide(); return; }
    const x = nearest(found.map(f => f.p))[0];
    const rows = found.filter(f => f.p[0] == x).sort((a, b) => b.p[1] - a.p[1]).slice(0, 20).map(f => {
      const band = smoothing > 0 ? null : bands.find(b => b.e.getAttribute('fill') == f.c.e.getAttribute('stroke'));
      const here = band && band.points.find(p => p[0] == x);
      return +f.p[1].toPrecision(6) + (here ? ' [' + +here[1].toPrecision(4) + ', ' + +here[2].toPrecision(4) + ']' : '') + '  ' + f.c.e.dataset.name;
    });
    tip.textContent = names[0].text + ' ' + x + '\n' + rows.join('\n');
    tip.hidden = false;
    const place = (px(x) / 560) * box.width;
    tip.style.left = Math.max(0, Math.min(place + 12, box.width - tip.offsetWidth)) + 'px';
    tip.style.top = (event.clientY - box.top + 16) + 'px';
    cursor.setAttribute('x1', px(x));
    cursor.setAttribute('x2', px(x));
    cursor.setAttribute('visibility', 'visible');
  };
}
</script>
)";

}  // namespace

void Page::heading(int level, const std::string& text) {
  markdown_ += std::string(static_cast<size_t>(level), '#') + " " + escape_html_in_markdown(text) + "\n\n";
  put(fmt::format("<h{0}>{1}</h{0}>\n", level, escape_markup(text)));
}

void Page::paragraph(const std::string& text) {
  markdown_ += escape_html_in_markdown(text) + "\n\n";
  put("<p>" + escape_markup(text) + "</p>\n");
}

void Page::table(const Table& table) {
  markdown_ += table.markdown() + "\n";
  put(table.html());
}

void Page::drawing(const std::string& file, const std::string& svg, Size size) {
  markdown_ += "![" + file + "](plots/" + file + ")\n\n";
  const std::string group = size == Size::small ? "small" : "drawings";
  if (group_ != group) {
    put("<div class=\"" + group + "\">\n");
    group_ = group;
  }
  html_ += "<figure>" + svg + "</figure>\n";
}

/// Anything but a drawing: the group of drawings before it ends.
void Page::put(const std::string& html) {
  html_ += group_.empty() ? html : "</div>\n" + html;
  group_.clear();
}

std::string Page::html(const std::string& title) const {
  return fmt::format(kHead, escape_markup(title)) + kStyle + html_ + (group_.empty() ? "" : "</div>\n") + kScript +
         "</html>\n";
}

}  // namespace hebb
