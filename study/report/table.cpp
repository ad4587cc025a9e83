#include "study/report/table.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>

#include "core/names.h"
#include "data/text/characters.h"
#include "study/report/chart.h"

namespace hebb {
namespace {

/// A cell for people: in full below ten million, fractions with five significant digits.
std::string shown(const Json& cell) {
  if (cell.is_null()) { return "–"; }
  if (!cell.is_number()) { return cell.text(); }
  const double v = cell.as_double();
  const bool is_whole = cell.is_integer() || std::abs(v) >= 1e5;
  return std::abs(v) >= 1e7 ? fmt::format("{:.4e}", v) : is_whole ? fmt::format("{:.0f}", v) : fmt::format("{:.5g}", v);
}

/// Whether a spreadsheet takes the text of a cell for a formula.
bool is_formula(const std::string& text) {
  if (text.find_first_of("=+-@\t\r") != 0) { return false; }
  double ignored = 0;
  const char* const last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, ignored);
  return status != std::errc() || end != last;
}

/// A cell of a CSV file, quoted where it must be. Text that would be a formula begins with an apostrophe.
std::string csv_cell(const std::string& text) {
  const std::string plain = is_formula(text) ? "'" + text : text;
  return plain.find_first_of(",\"\r\n") == std::string::npos ? plain : '"' + replace_all(plain, "\"", "\"\"") + '"';
}

/// A line for the titles and one for each row: `cell(column, text)`, joined by `between`.
template <class Cell> std::string line(const std::vector<std::string>& texts, const char* between, const Cell& cell) {
  std::string text;
  for (size_t i = 0; i < texts.size(); ++i) { text += (i > 0 ? between : "") + cell(i, texts[i]); }
  return text;
}

std::vector<std::string> shown(const std::vector<Json>& row) {
  std::vector<std::string> texts;
  for (const Json& cell : row) { texts.push_back(shown(cell)); }
  return texts;
}

}  // namespace

std::vector<std::string> Table::titles() const {
  std::vector<std::string> all;
  for (const TableColumn& column : columns) { all.push_back(column.title); }
  return all;
}

std::string Table::markdown() const {
  const auto cell = [](size_t, const std::string& text) {
    return replace_all(escape_html_in_markdown(printable(text)), "|", "\\|");
  };
  std::string text = "| " + line(titles(), " | ", cell) + " |\n|";
  for (const TableColumn& column : columns) { text += column.kind == TableColumn::Kind::text ? "---|" : "---:|"; }
  text += "\n";
  for (const auto& row : rows) { text += "| " + line(shown(row), " | ", cell) + " |\n"; }
  return text;
}

std::string Table::html() const {
  const auto cell = [&](const char* tag) {
    return [this, tag](size_t i, const std::string& text) {
      const std::string content = escape_markup(text), name = tag;
      return "<" + name + (columns[i].kind == TableColumn::Kind::text ? " class=\"text\">" : ">") +
             (name == "th" ? replace_all(content, ".", ".<wbr>") : content) + "</" + name + ">";
    };
  };
  std::string text = "<div class=\"wide\"><table><tr>" + line(titles(), "", cell("th")) + "</tr>\n";
  for (const auto& row : rows) { text += "<tr>" + line(shown(row), "", cell("td")) + "</tr>\n"; }
  return text + "</table></div>\n";
}

std::string Table::csv() const {
  const auto cell = [](size_t, const std::string& text) { return csv_cell(text); };
  std::string text = line(titles(), ",", cell) + "\n";
  for (const auto& row : rows) {
    std::vector<std::string> texts;
    for (const Json& c : row) { texts.push_back(c.is_null() ? "" : c.text()); }
    text += line(texts, ",", cell) + "\n";
  }
  return text;
}

void add_number_columns(Table& table, const std::vector<std::string>& titles) {
  for (const std::string& title : titles) { table.columns.emplace_back(title, TableColumn::Kind::number); }
}

}  // namespace hebb
