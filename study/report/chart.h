#pragma once
#include <optional>
#include <string>
#include <vector>

namespace hebb {

enum class Mark { line, dashed, points };

/// One named line of a chart. Curves of one `colour` (-1: the next free one) belong together.
struct Curve {
  std::string name;  // "" = not in the legend
  std::vector<double> x, y;
  Mark mark = Mark::line;
  int colour = -1;

  void add(double at, double value) {
    x.push_back(at);
    y.push_back(value);
  }
};

/// A shaded area between two curves; without them, from x.front() to x.back() over the whole height.
struct Band {
  std::vector<double> x, low, high;
  int colour = 0;
};

struct ChartStyle {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::optional<double> low_y = {}, high_y = {};  // the axis shows these at least
};

/// A self-contained SVG drawing: axes with labels and units, grid, and the legend below. Curves and bands keep their
/// values in attributes, from which the script of a page (study/report/page.cpp) says and draws them again.
std::string svg_chart(const std::vector<Curve>& curves, const ChartStyle& style, const std::vector<Band>& bands = {});

/// A chart of text lines for a terminal, `width` x `height` characters in all.
std::string text_chart(const std::vector<Curve>& curves, const std::string& y_label, int width, int height);

/// Round steps between low and high, about `count` of them.
std::vector<double> round_steps(double low, double high, int count);

/// `text` in at most `width` units of a drawing at the size of its legend: a long one loses its middle.
std::string shortened(const std::string& text, double width);

/// How a drawing of the usual width begins; its title stands at `x`.
std::string svg_begin(double height, double x, const std::string& title);

/// Colour i of drawings; they repeat after eight.
const char* chart_colour(int i);

/// `s` for HTML and SVG, and for Markdown without elements of HTML; control characters are escaped (core/names.h).
std::string escape_markup(const std::string& s);
std::string escape_html_in_markdown(const std::string& s);

}  // namespace hebb
