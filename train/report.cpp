#include "train/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <sstream>

#include "core/json.h"

namespace hebb {
namespace {

struct Range {
  double low = INFINITY, high = -INFINITY;

  void add(double v) {
    if (std::isfinite(v)) {
      low = std::min(low, v);
      high = std::max(high, v);
    }
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

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", v);
  return text;
}

std::string escaped(const std::string& s) {
  std::string out;
  for (const char c : s) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return out;
}

double value_of(const Json& line, const char* key) {
  const Json* v = line.find(key);
  return v != nullptr && v->is_number() ? v->as_double() : NAN;  // "nan" and "inf" are strings
}

/// Round steps between low and high, about `count` of them.
std::vector<double> ticks(const Range& r, int count) {
  const double raw = (r.high - r.low) / count, power = std::pow(10.0, std::floor(std::log10(raw)));
  const double step = power * (raw / power < 1.5 ? 1 : raw / power < 3.5 ? 2 : raw / power < 7.5 ? 5 : 10);
  std::vector<double> result;
  for (double t = std::ceil(r.low / step) * step; t <= r.high + 1e-9 * step; t += step) {
    result.push_back(std::abs(t) < 1e-12 * step ? 0.0 : t);
  }
  return result;
}

std::vector<double> log_ticks(const Range& r) {
  std::vector<double> result;
  for (double e = std::floor(r.low); e <= r.high; e += 1) {
    for (const double m : {1.0, 2.0, 5.0}) {
      const double t = e + std::log10(m);
      if (t >= r.low - 1e-9 && t <= r.high + 1e-9) {
        result.push_back(t);
      }
    }
  }
  return result;
}

const char* colour(size_t i) {
  static const char* const colours[] = {"#1f6fb2", "#d1495b", "#2e8b57", "#c98b1b", "#7b4fa3", "#3a3a3a", "#17becf", "#8c564b"};
  return colours[i % 8];
}

}  // namespace

RunMetrics read_metrics(const fs::path& run) {
  const fs::path path = run / "metrics.jsonl";
  std::istringstream lines(read_file(path));
  RunMetrics m;
  m.name = fs::absolute(run).lexically_normal().filename().string();
  m.name = m.name.empty() ? fs::absolute(run).lexically_normal().parent_path().filename().string() : m.name;
  std::map<std::string, size_t> validation;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    Json j;
    try {
      j = parse_json(line, path.string());
    } catch (const Error& e) {
      throw DataError(path.string() + ":" + std::to_string(number), std::string("not a metrics line: ") + e.what());
    }
    const double step = value_of(j, "step");
    if (const Json* val = j.find("val"); val != nullptr && val->is_string()) {
      const auto [it, fresh] = validation.insert({val->as_string(), m.validation.size()});
      if (fresh) {
        m.validation.push_back({val->as_string(), {}, {}});
      }
      m.validation[it->second].x.push_back(step);
      m.validation[it->second].y.push_back(value_of(j, "loss"));
      continue;
    }
    for (const auto& [curve, key] : {std::pair{&m.loss, "loss"}, std::pair{&m.lr, "lr"}, std::pair{&m.grad_norm, "grad_norm"}}) {
      curve->x.push_back(step);
      curve->y.push_back(value_of(j, key));
    }
  }
  m.loss.name = "training loss";
  m.lr.name = "learning rate";
  m.grad_norm.name = "gradient norm";
  return m;
}

std::string text_chart(const std::vector<Curve>& curves, const std::string& y_label, int width, int height) {
  static const char* const marks[] = {"*", "o", "+", "x"};
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
  std::vector<std::vector<std::string>> grid(static_cast<size_t>(rows), std::vector<std::string>(static_cast<size_t>(columns), " "));
  for (size_t k = curves.size(); k-- > 0;) {
    for (size_t i = 0; i < curves[k].x.size(); ++i) {
      if (!std::isfinite(curves[k].y[i])) {
        continue;
      }
      const auto cx = static_cast<size_t>(std::lround((curves[k].x[i] - rx.low) / (rx.high - rx.low) * (columns - 1)));
      const auto cy = static_cast<size_t>(std::lround((ry.high - curves[k].y[i]) / (ry.high - ry.low) * (rows - 1)));
      grid[cy][cx] = marks[k % 4];
    }
  }
  std::string out = y_label + "\n";
  for (int r = 0; r < rows; ++r) {
    char label[32];
    const bool labelled = r % 4 == 0 || r == rows - 1;
    std::snprintf(label, sizeof label, "%9s |", labelled ? number(ry.high - (ry.high - ry.low) * r / (rows - 1)).c_str() : "");
    out += label;
    for (const std::string& cell : grid[static_cast<size_t>(r)]) {
      out += cell;
    }
    out += "\n";
  }
  out += std::string(10, ' ') + "+" + std::string(static_cast<size_t>(columns), '-') + "\n";
  const std::string left = number(rx.low), right = number(rx.high) + " steps";
  out += std::string(11, ' ') + left + std::string(std::max<size_t>(1, static_cast<size_t>(columns) - std::min<size_t>(static_cast<size_t>(columns) - 1, left.size() + right.size())), ' ') + right + "\n";
  for (size_t k = 0; k < curves.size(); ++k) {
    out += std::string(11, ' ') + marks[k % 4] + " " + curves[k].name + "\n";
  }
  return out;
}

std::string svg_chart(const std::vector<Curve>& curves, const ChartStyle& style) {
  constexpr double kWidth = 720, kHeight = 420, kLeft = 70, kRight = 20, kTop = 40, kBottom = 60;
  const auto fx = [&](double v) { return style.log_x ? std::log10(v) : v; };
  const auto fy = [&](double v) { return style.log_y ? std::log10(v) : v; };
  Range rx, ry;
  for (const Curve& c : curves) {
    for (size_t i = 0; i < c.x.size(); ++i) {
      if (std::isfinite(c.y[i])) {
        rx.add(fx(c.x[i]));
        ry.add(fy(c.y[i]));
      }
    }
  }
  rx.widen();
  ry.widen();
  const auto px = [&](double u) { return kLeft + (u - rx.low) / (rx.high - rx.low) * (kWidth - kLeft - kRight); };
  const auto py = [&](double u) { return kHeight - kBottom - (u - ry.low) / (ry.high - ry.low) * (kHeight - kTop - kBottom); };
  std::ostringstream s;
  s << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kWidth << " " << kHeight
    << "\" font-family=\"sans-serif\" font-size=\"13\" role=\"img\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    << "<text x=\"" << kLeft << "\" y=\"22\" font-size=\"16\" font-weight=\"bold\">" << escaped(style.title) << "</text>\n";
  for (const double t : style.log_x ? log_ticks(rx) : ticks(rx, 6)) {
    s << "<line x1=\"" << px(t) << "\" x2=\"" << px(t) << "\" y1=\"" << kTop << "\" y2=\"" << kHeight - kBottom << "\" stroke=\"#e4e4e4\"/><text x=\""
      << px(t) << "\" y=\"" << kHeight - kBottom + 18 << "\" text-anchor=\"middle\">" << number(style.log_x ? std::pow(10.0, t) : t) << "</text>\n";
  }
  for (const double t : style.log_y ? log_ticks(ry) : ticks(ry, 6)) {
    s << "<line x1=\"" << kLeft << "\" x2=\"" << kWidth - kRight << "\" y1=\"" << py(t) << "\" y2=\"" << py(t) << "\" stroke=\"#e4e4e4\"/><text x=\""
      << kLeft - 8 << "\" y=\"" << py(t) + 4 << "\" text-anchor=\"end\">" << number(style.log_y ? std::pow(10.0, t) : t) << "</text>\n";
  }
  s << "<text x=\"" << (kLeft + kWidth - kRight) / 2 << "\" y=\"" << kHeight - 22 << "\" text-anchor=\"middle\">" << escaped(style.x_label)
    << "</text>\n<text transform=\"translate(18 " << (kTop + kHeight - kBottom) / 2 << ") rotate(-90)\" text-anchor=\"middle\">"
    << escaped(style.y_label) << "</text>\n";
  for (size_t k = 0; k < curves.size(); ++k) {
    s << "<polyline fill=\"none\" stroke=\"" << colour(k) << "\" stroke-width=\"1.8\" points=\"";
    for (size_t i = 0; i < curves[k].x.size(); ++i) {
      if (std::isfinite(curves[k].y[i])) {
        s << px(fx(curves[k].x[i])) << "," << py(fy(curves[k].y[i])) << " ";
      }
    }
    s << "\"/>\n";
    const double y = kTop + 14 + 18 * static_cast<double>(k), x = kWidth - kRight - 190;
    s << "<line x1=\"" << x << "\" x2=\"" << x + 24 << "\" y1=\"" << y - 4 << "\" y2=\"" << y - 4 << "\" stroke=\"" << colour(k)
      << "\" stroke-width=\"3\"/><text x=\"" << x + 30 << "\" y=\"" << y << "\">" << escaped(curves[k].name) << "</text>\n";
  }
  s << "</svg>\n";
  return s.str();
}

fs::path write_report(const std::vector<RunMetrics>& runs, const fs::path& out) {
  fs::create_directories(out);
  struct Chart {
    std::string file, svg;
  };
  std::vector<Chart> charts;
  const auto add = [&](const std::string& file, const std::vector<Curve>& curves, const ChartStyle& style) {
    charts.push_back({file, svg_chart(curves, style)});
    write_file_atomic(out / file, charts.back().svg);
  };
  std::vector<Curve> loss, lr, norm;
  for (const RunMetrics& m : runs) {
    const auto named = [&](Curve c) {
      c.name = runs.size() > 1 ? m.name + ": " + c.name : c.name;
      return c;
    };
    loss.push_back(named(m.loss));
    for (const Curve& v : m.validation) {
      Curve c = named(v);
      c.name = "validation " + c.name;
      loss.push_back(c);
    }
    lr.push_back(named(m.lr));
    norm.push_back(named(m.grad_norm));
  }
  add("loss.svg", loss, {"Loss", "optimizer steps", "cross-entropy [nats per token]"});
  add("lr.svg", lr, {"Learning rate", "optimizer steps", "learning rate"});
  add("grad_norm.svg", norm, {"Gradient norm before clipping", "optimizer steps", "norm", false, true});
  std::string page = "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<title>hebb report</title>\n<style>body{font-family:sans-serif;max-width:760px;margin:1em auto;padding:0 1em}svg{width:100%;height:auto}"
                     "table{border-collapse:collapse}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:right}</style>\n<h1>Report</h1>\n"
                     "<table><tr><th>run</th><th>steps</th><th>last loss</th><th>last validation</th></tr>\n";
  for (const RunMetrics& m : runs) {
    const bool any = !m.loss.x.empty(), val = !m.validation.empty() && !m.validation[0].y.empty();
    page += "<tr><td>" + escaped(m.name) + "</td><td>" + (any ? number(m.loss.x.back()) : "–") + "</td><td>" +
            (any ? number(m.loss.y.back()) : "–") + "</td><td>" + (val ? number(m.validation[0].y.back()) : "–") + "</td></tr>\n";
  }
  page += "</table>\n";
  for (const Chart& c : charts) {
    page += c.svg;
  }
  write_file_atomic(out / "index.html", page + "</html>\n");
  return out / "index.html";
}

}  // namespace hebb
