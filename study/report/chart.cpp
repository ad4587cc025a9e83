#include "study/report/chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <sstream>

#include "core/join.h"
#include "core/names.h"
#include "data/text/characters.h"

namespace hebb {
namespace {

constexpr const char* kLogScale = ", log scale";

struct Range {
  double low = INFINITY, high = -INFINITY;

  void add(double v) {
    if (std::isfinite(v)) {
      low = std::min(low, v);
      high = std::max(high, v);
    }
  }
  void pad(double share) {
    const double margin = share * (high - low);
    low -= margin;
    high += margin;
  }
  void widen() {
    if (!(low <= high)) {
      low = 0;
      high = 1;
    }
    if (low == high) {
      low -= 0.5 * std::max(1e-9, std::abs(low));
      high += 0.5 * std::max(1e-9, std::abs(high));
    }
  }
};

std::string number(double v, int digits = 4) { return fmt::format("{:.{}g}", v, digits); }

/// Significant digits that tell neighbours of an axis apart: 1.00001 and 1.00002 need six.
int digits_of(const std::vector<double>& ticks) {
  if (ticks.size() < 2) { return 4; }
  const double largest = std::max(std::abs(ticks.front()), std::abs(ticks.back()));
  const double step = std::abs(ticks[1] - ticks[0]);
  return std::clamp(static_cast<int>(std::floor(std::log10(largest)) - std::floor(std::log10(step))) + 1, 4, 12);
}

/// Axis labels: 10⁵ and beyond as powers of ten.
std::string label(double v, int digits) {
  const double size = std::abs(v);
  if (size != 0 && (size >= 1e5 || size < 1e-3)) {
    static const char* const superscripts[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    int exponent = static_cast<int>(std::floor(std::log10(size) + 1e-9));
    const double mantissa = v / std::pow(10.0, exponent);
    std::string text = std::abs(mantissa - 1) < 1e-6 ? "10" : number(mantissa, digits) + "·10";
    text += exponent < 0 ? "⁻" : "";
    for (const char c : std::to_string(std::abs(exponent))) { text += superscripts[c - '0']; }
    return text;
  }
  return number(v, size >= 1e4 ? std::max(digits, 5) : digits);
}

std::vector<double> ticks(const Range& r, int count) { return round_steps(r.low, r.high, count); }

/// Ticks of a logarithmic axis, as logarithms: powers of ten, with 2 and 5 where there is room, round values inside a
/// decade.
std::vector<double> log_ticks(const Range& r) {
  std::vector<double> result;
  const double decades = r.high - r.low;
  if (decades < 1) {
    for (const double t : ticks({std::pow(10.0, r.low), std::pow(10.0, r.high)}, 5)) {
      if (t > 0) { result.push_back(std::log10(t)); }
    }
    return result;
  }
  const int stride = decades > 8 ? 2 : 1;
  for (double e = std::floor(r.low); e <= r.high; e += stride) {
    for (const double m : {1.0, 2.0, 5.0}) {
      const double t = e + std::log10(m);
      if ((m == 1.0 || decades < 2.5) && t >= r.low - 1e-9 && t <= r.high + 1e-9) { result.push_back(t); }
    }
  }
  return result;
}

/// Where values are on the drawing.
struct Frame {
  static constexpr double kWidth = 560, kPlotHeight = 380, kLeft = 78, kRight = 16, kTop = 40, kBottom = 56;
  static constexpr double kLegendRow = 20, kLegendLeft = 14, kLegendMark = 30, kLegendGap = 12;
  bool log_x, log_y;
  Range rx, ry;

  double u(double v) const { return log_x ? std::log10(v) : v; }
  double w(double v) const { return log_y ? std::log10(v) : v; }
  double px(double at) const { return kLeft + (at - rx.low) / (rx.high - rx.low) * (kWidth - kLeft - kRight); }
  double py(double at) const {
    return kPlotHeight - kBottom - (at - ry.low) / (ry.high - ry.low) * (kPlotHeight - kTop - kBottom);
  }
  bool shows(double x, double y) const { return std::isfinite(u(x)) && std::isfinite(w(y)); }
  std::string point(double x, double y) const { return fmt::format("{:.2f},{:.2f} ", px(u(x)), py(w(y))); }
};

/// Width of a label in the drawing, roughly: superscripts are narrower.
double width_of(const std::string& text) {
  double width = 0;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    width += (byte & 0xC0) == 0x80 ? 0 : byte < 0x80 ? 7.4 : 5;
  }
  return width;
}

/// Ticks whose labels do not run into each other: `room` is what two neighbours need.
std::vector<double> with_room(const std::vector<double>& ticks, const std::function<double(double)>& place,
                              const std::function<double(double, double)>& room) {
  std::vector<double> kept;
  for (const double t : ticks) {
    if (kept.empty() || std::abs(place(t) - place(kept.back())) >= room(t, kept.back())) { kept.push_back(t); }
  }
  return kept;
}

void draw_axes(std::ostream& s, const Frame& f, const ChartStyle& style) {
  const double bottom = Frame::kPlotHeight - Frame::kBottom, right = Frame::kWidth - Frame::kRight;
  s << "<g class=\"axes\">\n";
  const std::vector<double> all_x = f.log_x ? log_ticks(f.rx) : ticks(f.rx, 5),
                            all_y = f.log_y ? log_ticks(f.ry) : ticks(f.ry, 6);
  const auto texts = [](const std::vector<double>& places, bool is_log) {
    std::vector<double> values;
    for (const double t : places) { values.push_back(is_log ? std::pow(10.0, t) : t); }
    return [digits = digits_of(values), is_log](double t) { return label(is_log ? std::pow(10.0, t) : t, digits); };
  };
  const auto label_x = texts(all_x, f.log_x), label_y = texts(all_y, f.log_y);
  const auto half_x = [&](double t) { return width_of(label_x(t)) / 2; };
  for (const double t : with_room(
           all_x, [&](double t) { return f.px(t); }, [&](double a, double b) { return half_x(a) + half_x(b) + 8; })) {
    const double middle = std::min(f.px(t), Frame::kWidth - 2 - half_x(t));  // not cut off at the right
    s << "<line x1=\"" << f.px(t) << "\" x2=\"" << f.px(t) << "\" y1=\"" << Frame::kTop << "\" y2=\"" << bottom
      << "\" stroke=\"#e4e4e4\"/><text x=\"" << middle << "\" y=\"" << bottom + 18 << "\" text-anchor=\"middle\">"
      << label_x(t) << "</text>\n";
  }
  for (const double t : with_room(
           all_y, [&](double t) { return f.py(t); }, [](double, double) { return 16.0; })) {
    s << "<line x1=\"" << Frame::kLeft << "\" x2=\"" << right << "\" y1=\"" << f.py(t) << "\" y2=\"" << f.py(t)
      << "\" stroke=\"#e4e4e4\"/><text x=\"" << Frame::kLeft - 8 << "\" y=\"" << f.py(t) + 4
      << "\" text-anchor=\"end\">" << label_y(t) << "</text>\n";
  }
  s << "</g>\n<rect x=\"" << Frame::kLeft << "\" y=\"" << Frame::kTop << "\" width=\"" << right - Frame::kLeft
    << "\" height=\"" << bottom - Frame::kTop << "\" fill=\"none\" stroke=\"#888\"/>\n"
    << "<text class=\"x\" x=\"" << (Frame::kLeft + right) / 2 << "\" y=\"" << bottom + 42
    << "\" text-anchor=\"middle\">" << escape_markup(style.x_label) << (f.log_x ? kLogScale : "")
    << "</text>\n<text class=\"y\" transform=\"translate(18 " << (Frame::kTop + bottom) / 2
    << ") rotate(-90)\" text-anchor=\"middle\">" << escape_markup(style.y_label) << (f.log_y ? kLogScale : "")
    << "</text>\n";
}

/// " class=… data-name=… data-v="x y;x y"": what a script needs of a curve; each of `rows` is a point.
std::string values_of(const char* name, const Curve& curve, const std::vector<size_t>& rows) {
  std::string text;
  for (const size_t i : rows) {
    text += fmt::format("{}{:.7g} {:.7g}", text.empty() ? "" : ";", curve.x[i], curve.y[i]);
  }
  return fmt::format(" class=\"{}\" data-name=\"{}\" data-v=\"{}\"", name, escape_markup(curve.name), text);
}

/// Curves beyond the eighth have the colours again, with other dashes.
std::string dashes(const Curve& c, int colour) {
  static const char* const patterns[] = {"", "6 4", "2 3", "9 3 2 3"};
  const char* const pattern = c.mark == Mark::dashed ? patterns[1] : patterns[static_cast<size_t>(colour / 8) % 4];
  return *pattern == '\0' ? "" : std::string(" stroke-dasharray=\"") + pattern + "\"";
}

void draw_curve(std::ostream& s, const Frame& f, const Curve& c, int colour) {
  constexpr size_t kMostPoints = 1200;  // more than the drawing has columns
  const size_t stride = c.mark == Mark::points ? 1 : c.x.size() / kMostPoints + 1;
  std::vector<size_t> drawn;
  for (size_t i = 0; i < c.x.size(); ++i) {
    if ((i % stride == 0 || i + 1 == c.x.size()) && f.shows(c.x[i], c.y[i])) { drawn.push_back(i); }
  }
  if (c.mark == Mark::points) {
    s << "<g fill=\"" << chart_colour(colour) << "\"" << values_of("curve", c, drawn) << ">\n";
    for (const size_t i : drawn) {
      s << "<circle cx=\"" << f.px(f.u(c.x[i])) << "\" cy=\"" << f.py(f.w(c.y[i])) << "\" r=\"4\"/>\n";
    }
    s << "</g>\n";
    return;
  }
  s << "<polyline fill=\"none\" stroke=\"" << chart_colour(colour) << "\" stroke-width=\"1.8\"" << dashes(c, colour)
    << " points=\"";
  for (const size_t i : drawn) { s << f.point(c.x[i], c.y[i]); }
  s << "\"" << values_of("curve", c, drawn) << "/>\n";
}

void draw_band(std::ostream& s, const Frame& f, const Band& b) {
  s << "<polygon fill=\"" << chart_colour(b.colour) << "\" fill-opacity=\"0.15\" points=\"";
  const auto corner = [&](size_t i, const std::vector<double>& side, double end) {
    const double at = side.empty() ? end : f.w(side[i]), y = std::isfinite(at) ? at : end;  // no logarithm: the edge
    s << fmt::format("{:.2f},{:.2f} ", f.px(f.u(b.x[i])), f.py(y));
  };
  for (size_t i = 0; i < b.x.size(); ++i) { corner(i, b.low, f.ry.low); }
  for (size_t i = b.x.size(); i-- > 0;) { corner(i, b.high, f.ry.high); }
  s << "\"";
  if (!b.low.empty()) {
    s << " class=\"band\" data-v=\"";
    for (size_t i = 0; i < b.x.size(); ++i) {
      s << fmt::format("{}{:.7g} {:.7g} {:.7g}", i > 0 ? ";" : "", b.x[i], b.low[i], b.high[i]);
    }
    s << "\"";
  }
  s << "/>\n";
}

/// Where the entries of a legend stand: two columns where the longest name has room in one.
struct Legend {
  explicit Legend(const std::vector<Curve>& curves) {
    for (const Curve& c : curves) {
      entries += c.name.empty() ? 0 : 1;
      widest = std::max(widest, width_of(c.name));
    }
    constexpr double kAll = Frame::kWidth - Frame::kLegendLeft;
    columns = widest <= kAll / 2 - Frame::kLegendMark - Frame::kLegendGap ? 2 : 1;
    column = kAll / columns;
  }
  double height() const {
    const int rows = (entries + columns - 1) / columns;
    return Frame::kLegendRow * rows;
  }

  int entries = 0, columns = 1;
  double widest = 0, column = 0;
};

void draw_legend(std::ostream& s, const std::vector<Curve>& curves, const std::vector<int>& colours) {
  const Legend legend(curves);
  int entry = 0;
  for (size_t k = 0; k < curves.size(); ++k) {
    if (curves[k].name.empty()) { continue; }
    const int row = entry / legend.columns;
    const double x = Frame::kLegendLeft + legend.column * (entry % legend.columns),
                 y = Frame::kPlotHeight + 8 + Frame::kLegendRow * row;
    if (curves[k].mark == Mark::points) {
      s << "<circle cx=\"" << x + 12 << "\" cy=\"" << y - 4 << "\" r=\"4\" fill=\"" << chart_colour(colours[k])
        << "\"/>";
    } else {
      s << "<line x1=\"" << x << "\" x2=\"" << x + 24 << "\" y1=\"" << y - 4 << "\" y2=\"" << y - 4 << "\" stroke=\""
        << chart_colour(colours[k]) << "\" stroke-width=\"3\"" << dashes(curves[k], colours[k]) << "/>";
    }
    const std::string name = shortened(curves[k].name, legend.column - Frame::kLegendMark - Frame::kLegendGap);
    s << "<text x=\"" << x + Frame::kLegendMark << "\" y=\"" << y << "\">" << escape_markup(name);
    if (name != curves[k].name) { s << "<title>" << escape_markup(curves[k].name) << "</title>"; }
    s << "</text>\n";
    ++entry;
  }
}

/// Round values beside the rows of a terminal that are nearest to them; "" beside the others.
std::vector<std::string> row_labels(const Range& r, int rows) {
  constexpr int kRowsOfLabel = 4;
  std::vector<std::string> labels(static_cast<size_t>(rows));
  const std::vector<double> all = ticks(r, std::max(2, rows / kRowsOfLabel));
  for (const double t : all) {
    const auto row =
        static_cast<size_t>(std::clamp<long>(std::lround((r.high - t) / (r.high - r.low) * (rows - 1)), 0, rows - 1));
    labels[row] = number(t, digits_of(all));
  }
  return labels;
}

/// The character of curve k on a terminal; as many as a reader can tell apart.
char mark_of(size_t k) {
  constexpr std::string_view kMarks = "*o+x#@%&ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnpqrstuvwyz0123456789";
  return kMarks[k % kMarks.size()];
}

}  // namespace

std::vector<double> round_steps(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(raw)));
  const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  std::vector<double> result;
  for (double t = std::ceil(low / step - 1e-9) * step; t <= high + 1e-9 * step; t += step) {
    result.push_back(std::abs(t) < 1e-12 * step ? 0.0 : t);
  }
  return result;
}

std::string shortened(const std::string& text, double width) {
  if (width_of(text) <= width) { return text; }
  std::vector<std::string> characters;
  for (const char c : text) {
    const bool goes_on = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    goes_on && !characters.empty() ? characters.back() += c : characters.emplace_back(1, c);
  }
  while (characters.size() > 1) {
    characters.erase(characters.begin() + static_cast<std::ptrdiff_t>(characters.size() / 2));
    const auto middle = characters.begin() + static_cast<std::ptrdiff_t>(characters.size() / 2);
    const std::string cut = join(std::vector<std::string>(characters.begin(), middle), "") + "…" +
                            join(std::vector<std::string>(middle, characters.end()), "");
    if (width_of(cut) <= width) { return cut; }
  }
  return "…";
}

const char* chart_colour(int i) {
  static const char* const colours[] = {"#1f6fb2", "#d1495b", "#2e8b57", "#c98b1b",
                                        "#7b4fa3", "#3a3a3a", "#17a2b8", "#8c564b"};
  return colours[static_cast<size_t>(i) % 8];
}

std::string escape_markup(const std::string& s) {
  std::string out;
  for (const char c : printable(s, true)) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return out;
}

std::string escape_html_in_markdown(const std::string& s) {
  return replace_all(replace_all(printable(s, true), "&", "&amp;"), "<", "&lt;");
}

std::string svg_begin(double height, double x, const std::string& title) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 {:g}" font-family="sans-serif" font-size="13" role="img">
<rect width="100%" height="100%" fill="white"/>
<text x="{:g}" y="24" font-size="16" font-weight="bold">{}</text>
)",
      height, x, escape_markup(title));
}

std::string svg_chart(const std::vector<Curve>& curves, const ChartStyle& style, const std::vector<Band>& bands) {
  Frame f{style.log_x, style.log_y, {}, {}};
  std::vector<int> colours;
  int next = 0;
  for (const Curve& c : curves) {
    colours.push_back(c.colour >= 0 ? c.colour : next++);
    for (size_t i = 0; i < c.x.size(); ++i) {
      if (f.shows(c.x[i], c.y[i])) {
        f.rx.add(f.u(c.x[i]));
        f.ry.add(f.w(c.y[i]));
      }
    }
  }
  for (const std::optional<double>& y : {style.low_y, style.high_y}) {
    if (y) { f.ry.add(f.w(*y)); }
  }
  f.rx.widen();
  f.ry.widen();
  const bool has_points =
      std::any_of(curves.begin(), curves.end(), [](const Curve& c) { return c.mark == Mark::points; });
  f.ry.pad(0.03);
  f.rx.pad(has_points ? 0.03 : 0.0);  // dots are not cut by the frame
  std::ostringstream s;
  s << svg_begin(Frame::kPlotHeight + Legend(curves).height(), Frame::kLeft, style.title)
    << fmt::format(
           "<g class=\"chart\" data-frame=\"{:g} {:g} {:g} {:g}\" data-range=\"{} {} {} {}\" data-log=\"{:d}{:d}\">\n",
           Frame::kLeft, Frame::kTop, Frame::kWidth - Frame::kLeft - Frame::kRight,
           Frame::kPlotHeight - Frame::kTop - Frame::kBottom, f.rx.low, f.rx.high, f.ry.low, f.ry.high,
           static_cast<int>(f.log_x), static_cast<int>(f.log_y));
  draw_axes(s, f, style);
  s << "<defs><clipPath id=\"plot\"><rect x=\"" << Frame::kLeft << "\" y=\"" << Frame::kTop << "\" width=\""
    << Frame::kWidth - Frame::kLeft - Frame::kRight << "\" height=\""
    << Frame::kPlotHeight - Frame::kTop - Frame::kBottom << "\"/></clipPath></defs><g clip-path=\"url(#plot)\">\n";
  for (const Band& b : bands) { draw_band(s, f, b); }
  for (size_t k = 0; k < curves.size(); ++k) { draw_curve(s, f, curves[k], colours[k]); }
  s << "</g></g>\n";
  draw_legend(s, curves, colours);
  s << "</svg>\n";
  return s.str();
}

std::string text_chart(const std::vector<Curve>& curves, const std::string& y_label, int width, int height) {
  Range rx, ry;
  for (const Curve& c : curves) {
    for (size_t i = 0; i < c.x.size(); ++i) {
      rx.add(c.x[i]);
      ry.add(c.y[i]);
    }
  }
  rx.widen();
  ry.widen();
  const int columns = std::max(10, width - 11), rows = std::max(4, height - 3);
  std::vector<std::string> grid(static_cast<size_t>(rows), std::string(static_cast<size_t>(columns), ' '));
  for (size_t k = curves.size(); k-- > 0;) {
    for (size_t i = 0; i < curves[k].x.size(); ++i) {
      if (!std::isfinite(curves[k].y[i])) { continue; }
      const auto cx = static_cast<size_t>(std::lround((curves[k].x[i] - rx.low) / (rx.high - rx.low) * (columns - 1)));
      const auto cy = static_cast<size_t>(std::lround((ry.high - curves[k].y[i]) / (ry.high - ry.low) * (rows - 1)));
      grid[cy][cx] = mark_of(k);
    }
  }
  std::string out = y_label + "\n";
  const std::vector<std::string> labels = row_labels(ry, rows);
  for (size_t r = 0; r < grid.size(); ++r) {
    out += fmt::format("{:>9} {}", labels[r], labels[r].empty() ? '|' : '+') + grid[r] + "\n";
  }
  out += std::string(10, ' ') + "+" + std::string(static_cast<size_t>(columns), '-') + "\n";
  const std::string left = number(rx.low), right = " " + number(rx.high) + " steps";
  const size_t rest = std::max(static_cast<size_t>(columns), left.size()) - left.size();
  out += fmt::format("{:11}{}{:>{}}\n", "", left, right, rest);
  for (size_t k = 0; k < curves.size(); ++k) { out += std::string(11, ' ') + mark_of(k) + " " + curves[k].name + "\n"; }
  return out;
}

}  // namespace hebb
