#pragma once
#include <optional>
#include <string>
#include <vector>

namespace hebb {

/// A table of numbers as shades, for values that run from 0 (white) to `top`.
struct HeatMap {
  std::string title, x_label;
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;  // [rows][columns]; NaN: nothing is drawn
  std::string y_label = {};                 // above the names of the rows
  double top = 0;                           // 0: the largest value
};
std::string svg_heat_map(const HeatMap& map);

/// Bars side by side, each a stack of segments that begins at 0.
struct StackedBars {
  std::string title, y_label;
  std::vector<std::string> bars, segments;
  std::vector<std::vector<double>> values;  // [bars][segments], >= 0; NaN: nothing
  double top = 1;                           // end of the axis
};
std::string svg_stacked_bars(const StackedBars& chart);

/// Means with 95 % intervals, a line for each row; what they are the means of stands as rings.
struct IntervalChart {
  struct Row {
    std::string name;
    double mean = 0;
    std::optional<double> half;  // of the interval
    std::vector<double> values;
  };
  std::string title, x_label;
  std::vector<Row> rows;
};
std::string svg_intervals(const IntervalChart& chart);

/// Shares (0 to 1) over bytes, a named point for each row, with its 95 % interval as far as the axis goes.
struct ByteChart {
  struct Point {
    std::string name;
    double bytes = 0, share = 0;
    std::optional<double> half;  // of the interval
  };
  std::string title, x_label, y_label;
  std::vector<Point> points;
};
std::string svg_bytes(const ByteChart& chart);

}  // namespace hebb
