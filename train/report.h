#pragma once
#include <string>
#include <vector>

#include "core/files.h"

namespace hebb {

/// One named line of a chart.
struct Curve {
  std::string name;
  std::vector<double> x, y;
};

/// What metrics.jsonl of a run holds (spec 83, section 11).
struct RunMetrics {
  std::string name;
  Curve loss, lr, grad_norm;
  std::vector<Curve> validation;
};

/// Reads RUN/metrics.jsonl. Throws DataError naming file and line.
RunMetrics read_metrics(const fs::path& run);

/// A chart of text lines for a terminal, `width` x `height` characters in all.
std::string text_chart(const std::vector<Curve>& curves, const std::string& y_label, int width, int height);

struct ChartStyle {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
};
/// A self-contained SVG drawing.
std::string svg_chart(const std::vector<Curve>& curves, const ChartStyle& style);

/// Writes index.html and one SVG per chart into `out`; returns the page's path.
fs::path write_report(const std::vector<RunMetrics>& runs, const fs::path& out);

}  // namespace hebb
