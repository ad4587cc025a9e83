#include "study/report/chart_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/progress.h"
#include "study/report/chart.h"

namespace hebb {
namespace {

constexpr double kWidth = 560, kTop = 40, kRight = 16;

void put_text(std::ostream& s, double x, double y, const char* anchor, const std::string& text, double size = 13) {
  s << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << "\" font-size=\"" << size << "\">"
    << escape_markup(text) << "</text>\n";
}

/// `said`: what is shown over the box.
void put_box(std::ostream& s, double x, double y, double width, double height, const std::string& colour,
             const std::string& said = "") {
  s << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height << "\" fill=\""
    << colour << "\"";
  s << (said.empty() ? "/>\n" : "><title>" + escape_markup(said) + "</title></rect>\n");
}

/// White for 0, deep blue for 1.
std::string shade(double share) {
  const auto part = [&](double end) { return static_cast<int>(std::lround(255 + (end - 255) * share)); };
  return fmt::format("#{:02x}{:02x}{:02x}", part(16), part(70), part(140));
}

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;

  double overlap(const Box& other) const {
    return std::max(0.0, std::min(right, other.right) - std::max(left, other.left)) *
           std::max(0.0, std::min(bottom, other.bottom) - std::max(top, other.top));
  }
};

/// A place for a name of that width beside the point (x, y): the nearest of those that cover least of `taken`.
Box place_of_name(double x, double y, double width, const Box& frame, const std::vector<Box>& taken) {
  constexpr double kHigh = 13, kBeside = 8;
  Box best;
  double least = INFINITY;
  for (const double shift : {0.0, -13.0, 13.0, -26.0, 26.0, -39.0, 39.0, -52.0, 52.0, -65.0, 65.0}) {
    for (const double from : {x + kBeside, x - kBeside - width}) {
      const Box box{from, y + shift - kHigh / 2, from + width, y + shift + kHigh / 2};
      const bool is_inside = box.left >= frame.left && box.right <= frame.right && box.top >= frame.top - kHigh / 2 &&
                             box.bottom <= frame.bottom;
      double covered = is_inside ? 0 : 1e6;
      for (const Box& other : taken) { covered += box.overlap(other); }
      if (covered < least) {
        least = covered;
        best = box;
      }
    }
  }
  return best;
}

size_t longest(const std::vector<std::string>& names) {
  size_t most = 0;
  for (const std::string& name : names) { most = std::max(most, name.size()); }
  return most;
}

}  // namespace

std::string svg_heat_map(const HeatMap& map) {
  constexpr double kCell = 24;
  const double left = std::min(240.0, 20 + 7.2 * static_cast<double>(longest(map.rows)));
  const double width = (kWidth - left - kRight) / static_cast<double>(std::max<size_t>(1, map.columns.size()));
  const double bottom = kTop + kCell * static_cast<double>(map.rows.size());
  double largest = map.top;
  for (const auto& row : map.values) {
    for (const double v : row) { largest = std::isfinite(v) && map.top == 0 ? std::max(largest, v) : largest; }
  }
  std::ostringstream s;
  s << svg_begin(bottom + 50, 12, map.title);
  if (!map.y_label.empty()) { put_text(s, left - 8, kTop - 4, "end", map.y_label, 12); }
  for (size_t r = 0; r < map.rows.size(); ++r) {
    const double y = kTop + kCell * static_cast<double>(r);
    put_text(s, left - 8, y + 16, "end", map.rows[r], 12);
    for (size_t c = 0; c < map.columns.size(); ++c) {
      const double v = map.values[r][c], share = largest > 0 ? v / largest : 0.0;
      if (!std::isfinite(v)) { continue; }
      const double x = left + width * static_cast<double>(c);
      put_box(s, x, y, width - 1, kCell - 1, shade(share));
      s << "<text x=\"" << x + width / 2 << "\" y=\"" << y + 16 << "\" text-anchor=\"middle\" font-size=\"11\" fill=\""
        << (share > 0.5 ? "white" : "#333") << "\">" << fmt::format("{:.2g}", v) << "</text>\n";
    }
  }
  for (size_t c = 0; c < map.columns.size(); ++c) {
    put_text(s, left + width * (static_cast<double>(c) + 0.5), bottom + 16, "middle", map.columns[c], 11);
  }
  put_text(s, (left + kWidth - kRight) / 2, bottom + 38, "middle", map.x_label);
  s << "</svg>\n";
  return s.str();
}

std::string svg_stacked_bars(const StackedBars& chart) {
  constexpr double kNarrow = 70, kPlot = 260, kBottom = kTop + kPlot, kLegendRow = 20;
  const auto count = static_cast<double>(std::max<size_t>(1, chart.bars.size()));
  const bool is_tilted = static_cast<double>(longest(chart.bars)) * 7 * count > kWidth - kNarrow - kRight;
  const double left = is_tilted ? std::max(kNarrow, std::min(200.0, 4.8 * static_cast<double>(longest(chart.bars))))
                                : kNarrow;  // names lean to the left
  const double slot = (kWidth - left - kRight) / count;
  const double names = is_tilted ? 24 + 4.5 * static_cast<double>(longest(chart.bars)) : 24,
               legend = kBottom + names + 16;
  const size_t legend_rows = (chart.segments.size() + 1) / 2;
  std::ostringstream s;
  s << svg_begin(legend + kLegendRow * static_cast<double>(legend_rows), 12, chart.title);
  for (int tick = 0; tick <= 5; ++tick) {
    const double v = chart.top * tick / 5, y = kBottom - kPlot * tick / 5;
    s << "<line x1=\"" << left << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << y << "\" y2=\"" << y
      << "\" stroke=\"#e4e4e4\"/>\n";
    put_text(s, left - 8, y + 4, "end", fmt::format("{:.2g}", v));
  }
  s << "<text transform=\"translate(" << left - 52 << " " << (kTop + kBottom) / 2
    << ") rotate(-90)\" text-anchor=\"middle\">" << escape_markup(chart.y_label) << "</text>\n";
  for (size_t b = 0; b < chart.bars.size(); ++b) {
    const double x = left + slot * static_cast<double>(b), wide = std::min(60.0, 0.7 * slot);
    double from = kBottom;
    for (size_t k = 0; k < chart.segments.size(); ++k) {
      const double v = chart.values[b][k];
      if (!std::isfinite(v) || v <= 0) { continue; }
      const double height = kPlot * v / chart.top;
      put_box(s, x + (slot - wide) / 2, from - height, wide, height, chart_colour(static_cast<int>(k)),
              fmt::format("{}, {}: {:.4g}", chart.bars[b], chart.segments[k], v));
      from -= height;
    }
    if (is_tilted) {
      s << "<text transform=\"translate(" << x + slot / 2 << " " << kBottom + 14
        << ") rotate(-35)\" text-anchor=\"end\" font-size=\"11\">" << escape_markup(chart.bars[b]) << "</text>\n";
    } else {
      put_text(s, x + slot / 2, kBottom + 16, "middle", chart.bars[b], 12);
    }
  }
  for (size_t k = 0; k < chart.segments.size(); ++k) {
    const size_t column = k % 2, row = k / 2;
    const double x = 14 + 272 * static_cast<double>(column), y = legend + kLegendRow * static_cast<double>(row);
    put_box(s, x, y - 9, 16, 10, chart_colour(static_cast<int>(k)));
    put_text(s, x + 24, y, "start", chart.segments[k]);
  }
  s << "</svg>\n";
  return s.str();
}

std::string svg_intervals(const IntervalChart& chart) {
  constexpr double kRow = 26, kWidestNames = 220;
  std::vector<std::string> names;
  double low = INFINITY, high = -INFINITY;
  for (const IntervalChart::Row& row : chart.rows) {
    names.push_back(row.name);
    for (const double v : row.values) {
      low = std::min({low, v, row.mean - row.half.value_or(0)});
      high = std::max({high, v, row.mean + row.half.value_or(0)});
    }
  }
  const double margin = high > low ? 0.04 * (high - low) : std::max(1e-9, 0.1 * std::abs(low));
  low -= margin;
  high += margin;
  const double left = std::min(kWidestNames, 24 + 7.4 * static_cast<double>(longest(names)));
  const double bottom = kTop + kRow * static_cast<double>(chart.rows.size());
  const auto place = [&](double v) { return left + (v - low) / (high - low) * (kWidth - kRight - left); };
  std::ostringstream s;
  s << svg_begin(bottom + 50, 12, chart.title);
  const std::vector<double> steps = round_steps(low, high, 4);
  const double size = std::max(std::abs(low), std::abs(high)), step = steps.size() > 1 ? steps[1] - steps[0] : size;
  const int digits = std::clamp(static_cast<int>(std::ceil(std::log10(size / step))) + 1, 3, 12);
  for (const double t : steps) {
    s << "<line x1=\"" << place(t) << "\" x2=\"" << place(t) << "\" y1=\"" << kTop << "\" y2=\"" << bottom
      << "\" stroke=\"#e4e4e4\"/>\n";
    put_text(s, place(t), bottom + 16, "middle", fmt::format("{:.{}g}", t, digits), 12);
  }
  for (size_t r = 0; r < chart.rows.size(); ++r) {
    const IntervalChart::Row& row = chart.rows[r];
    const double y = kTop + kRow * (static_cast<double>(r) + 0.5);
    const char* const colour = chart_colour(static_cast<int>(r));
    s << fmt::format("<g stroke=\"{0}\" fill=\"{0}\"><title>{1}: {2:.6g}{3}</title>\n", colour, escape_markup(row.name),
                     row.mean, row.half ? fmt::format(" ± {:.3g}", *row.half) : ", one seed: no interval");
    for (const double v : row.values) {
      s << "<circle cx=\"" << place(v) << "\" cy=\"" << y << "\" r=\"3.5\" fill=\"none\" stroke-opacity=\"0.5\"/>\n";
    }
    if (row.half) {
      const double from = place(row.mean - *row.half), to = place(row.mean + *row.half);
      s << fmt::format(
          "<path fill=\"none\" stroke-width=\"2\" d=\"M{0:.2f} {2:g}H{1:.2f}M{0:.2f} {3:g}v10M{1:.2f} {3:g}v10\"/>\n",
          from, to, y, y - 5);
      s << "<circle cx=\"" << place(row.mean) << "\" cy=\"" << y << "\" r=\"4.5\"/>\n";
    }
    s << "</g>\n";
    put_text(s, left - 8, y + 4, "end", shortened(row.name, left - 20), 12);
  }
  put_text(s, (left + kWidth - kRight) / 2, bottom + 38, "middle", chart.x_label);
  s << "</svg>\n";
  return s.str();
}

std::string svg_bytes(const ByteChart& chart) {
  constexpr double kLeft = 62, kPlot = 330;
  const Box frame{kLeft, kTop, kWidth - kRight, kTop + kPlot};
  double low = INFINITY, high = -INFINITY;  // powers of two
  for (const ByteChart::Point& p : chart.points) {
    low = std::min(low, std::log2(p.bytes) - 0.5);
    high = std::max(high, std::log2(p.bytes) + 0.5);
  }
  const auto place_x = [&](double power) { return kLeft + (power - low) / (high - low) * (frame.right - kLeft); };
  const auto place_y = [&](double share) { return frame.bottom - kPlot * (0.03 + 0.94 * std::clamp(share, 0.0, 1.0)); };
  std::ostringstream s;
  s << svg_begin(frame.bottom + 50, kLeft, chart.title);
  const double step = std::max(1.0, std::ceil((high - low) / 8));
  for (double power = std::ceil(low); power <= high; power += step) {
    s << "<line x1=\"" << place_x(power) << "\" x2=\"" << place_x(power) << "\" y1=\"" << kTop << "\" y2=\""
      << frame.bottom << "\" stroke=\"#e4e4e4\"/>\n";
    put_text(s, place_x(power), frame.bottom + 16, "middle", format_bytes(std::exp2(power)), 11);
  }
  for (int tick = 0; tick <= 5; ++tick) {
    const double share = tick / 5.0, y = place_y(share);
    s << "<line x1=\"" << kLeft << "\" x2=\"" << frame.right << "\" y1=\"" << y << "\" y2=\"" << y
      << "\" stroke=\"#e4e4e4\"/>\n";
    put_text(s, kLeft - 8, y + 4, "end", fmt::format("{:.2g}", share), 12);
  }
  s << "<rect x=\"" << kLeft << "\" y=\"" << kTop << "\" width=\"" << frame.right - kLeft << "\" height=\"" << kPlot
    << "\" fill=\"none\" stroke=\"#888\"/>\n";
  std::vector<Box> taken;
  for (const ByteChart::Point& p : chart.points) {
    const double x = place_x(std::log2(p.bytes)), y = place_y(p.share);
    taken.push_back({x - 5, y - 5, x + 5, y + 5});
    if (p.half) { taken.push_back({x - 3, place_y(p.share + *p.half), x + 3, place_y(p.share - *p.half)}); }
  }
  for (size_t k = 0; k < chart.points.size(); ++k) {
    const ByteChart::Point& p = chart.points[k];
    const double x = place_x(std::log2(p.bytes)), y = place_y(p.share);
    const std::string name = shortened(p.name, 200);
    const double width = 7.2 * static_cast<double>(name.size());
    const Box box = place_of_name(x, y, width, frame, taken);
    const double middle = (box.top + box.bottom) / 2;
    taken.push_back(box);
    s << fmt::format(
        "<g stroke=\"{0}\" fill=\"{0}\" data-name=\"{1}\" data-v=\"{2:.7g} {3:.7g}{4}\"><title>{1}: {3:.4g}{5}, "
        "{6}</title>\n",
        chart_colour(static_cast<int>(k)), escape_markup(p.name), p.bytes, p.share,
        p.half ? fmt::format(" {:.7g}", *p.half) : "", p.half ? fmt::format(" ± {:.3g}", *p.half) : "",
        format_bytes(p.bytes));
    if (p.half) {
      const double top = place_y(p.share + *p.half), bottom = place_y(p.share - *p.half);
      s << fmt::format(
          "<path fill=\"none\" stroke-width=\"1.5\" d=\"M{0:.2f} {1:.2f}V{2:.2f}M{3:.2f} {1:.2f}h8M{3:.2f} "
          "{2:.2f}h8\"/>\n",
          x, top, bottom, x - 4);
    }
    if (std::abs(middle - y) > 1) {
      s << fmt::format(
          "<path fill=\"none\" stroke-width=\"0.7\" stroke-opacity=\"0.6\" d=\"M{:.2f} {:.2f}L{:.2f} {:.2f}\"/>\n", x,
          y, box.left > x ? box.left : box.right, middle);
    }
    s << fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"4.5\"/>\n", x, y)
      << fmt::format(
             "<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"12\" stroke=\"none\" text-anchor=\"{}\">{}</text>\n</g>\n",
             box.left > x ? box.left : box.right, middle + 4, box.left > x ? "start" : "end", escape_markup(name));
  }
  put_text(s, (kLeft + frame.right) / 2, frame.bottom + 40, "middle", chart.x_label + ", log scale");
  s << "<text transform=\"translate(18 " << (kTop + frame.bottom) / 2 << ") rotate(-90)\" text-anchor=\"middle\">"
    << escape_markup(chart.y_label) << "</text>\n</svg>\n";
  return s.str();
}

}  // namespace hebb
