#include "study/report/chart_blocks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "study/report/chart.h"

namespace hebb {
namespace {

constexpr double kWidth = 560, kTop = 40, kRight = 16;

void put_text(std::ostream& s, double x, double y, const char* anchor, const std::string& text, double size = 13) {
  s << "<text x=\"" << x << "\" y=\"" << y << "\" text-anchor=\"" << anchor << "\" font-size=\"" << size << "\">"
    << escape_markup(text) << "</text>\n";
}

void put_box(std::ostream& s, double x, double y, double width, double height, const std::string& colour) {
  s << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << height << "\" fill=\""
    << colour << "\"/>\n";
}

/// White for 0, deep blue for 1.
std::string shade(double share) {
  const auto part = [&](double end) { return static_cast<int>(std::lround(255 + (end - 255) * share)); };
  return fmt::format("#{:02x}{:02x}{:02x}", part(16), part(70), part(140));
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
      put_box(s, x + (slot - wide) / 2, from - height, wide, height, chart_colour(static_cast<int>(k)));
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

}  // namespace hebb
