#include "core/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"

namespace hebb {

int terminal_columns(int descriptor, int otherwise) {
  winsize size{};
  const bool is_known = ::isatty(descriptor) == 1 && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return is_known ? size.ws_col : otherwise;
}

size_t text_columns(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return !is_utf8_continuation(c); }));
}

std::string fold(std::string_view line, int columns, size_t hang) {
  if (columns <= 0 || text_columns(line) <= static_cast<size_t>(columns)) { return std::string(line); }
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  std::string text(line.substr(0, indent));
  size_t taken = indent;
  for (size_t at = indent; at < line.size();) {
    const size_t next = std::min(line.find_first_not_of(' ', at), line.size());
    const size_t end = std::min(line.find(' ', next), line.size());
    const std::string_view word = line.substr(next, end - next);
    const size_t gap = next - at, width = text_columns(word);
    if (at > indent && taken + gap + width > static_cast<size_t>(columns)) {
      text += "\n" + std::string(indent + hang, ' ');
      taken = indent + hang + width;
    } else {
      text.append(gap, ' ');
      taken += gap + width;
    }
    text += word;
    at = end;
  }
  return text;
}

std::string text_table(const std::vector<std::vector<std::string>>& rows, int columns, const std::set<size_t>& left) {
  HEBB_ASSERT(!rows.empty() && !rows[0].empty());
  const size_t count = rows[0].size();
  std::vector<size_t> widths(count);
  for (const std::vector<std::string>& row : rows) {
    HEBB_ASSERT(row.size() == count);
    for (size_t i = 0; i < count; ++i) { widths[i] = std::max(widths[i], text_columns(row[i])); }
  }
  std::string text;
  size_t from = 1;
  do {
    size_t to = from, taken = widths[0];
    const auto fits = [&](size_t i) {
      return columns <= 0 || i == from || taken + 2 + widths[i] <= static_cast<size_t>(columns);
    };
    while (to < count && fits(to)) { taken += 2 + widths[to++]; }
    if (from > 1) { text += "\n"; }
    for (const std::vector<std::string>& row : rows) {
      std::string line = row[0] + std::string(widths[0] - text_columns(row[0]), ' ');
      for (size_t i = from; i < to; ++i) {
        const std::string space(widths[i] - text_columns(row[i]), ' ');
        line += "  " + (left.count(i) > 0 ? row[i] + space : space + row[i]);
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    from = to;
  } while (from < count);
  return text;
}

}  // namespace hebb
