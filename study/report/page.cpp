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
    "p{max-width:1000px}svg{display:block;width:100%;max-width:760px;height:auto}.wide{overflow-x:auto}"
    ".drawings,.small{display:grid;gap:.5em 1.5em;align-items:start;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}"
    ".small{grid-template-columns:repeat(auto-fill,minmax(min(100%,300px),1fr))}"
    "table{border-collapse:separate;border-spacing:0;font-size:90%}"
    "td,th{padding:.2em .6em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}"
    "th{white-space:normal;vertical-align:bottom}.text{text-align:left}"
    "td:first-child,th:first-child{position:sticky;left:0;background:white}"
    "@media(max-width:600px){table{font-size:80%}td,th{padding:.2em .35em}"
    "td:first-child,th:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8em;max-width:38vw}}</style>\n";

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
  html_ += svg;
}

/// Anything but a drawing: the group of drawings before it ends.
void Page::put(const std::string& html) {
  html_ += group_.empty() ? html : "</div>\n" + html;
  group_.clear();
}

std::string Page::html(const std::string& title) const {
  return fmt::format(kHead, escape_markup(title)) + kStyle + html_ + (group_.empty() ? "" : "</div>\n") + "</html>\n";
}

}  // namespace hebb
