#include "study/page.h"

#include <fmt/core.h>

#include "study/chart.h"

namespace hebb {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{}</title>
)";
constexpr const char* kStyle =
    "<style>body{font-family:sans-serif;max-width:1000px;margin:1em auto;padding:0 1em;line-height:1.4}"
    "svg{display:block;width:100%;max-width:760px;height:auto}.wide{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:90%}"
    "td,th{padding:.2em .6em;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}"
    "th{white-space:normal;vertical-align:bottom}.text{text-align:left}"
    "td:first-child,th:first-child{position:sticky;left:0;background:white}</style>\n";

}  // namespace

void Page::heading(int level, const std::string& text) {
  markdown_ += std::string(static_cast<size_t>(level), '#') + " " + text + "\n\n";
  html_ += fmt::format("<h{0}>{1}</h{0}>\n", level, escape_markup(text));
}

void Page::paragraph(const std::string& text) {
  markdown_ += text + "\n\n";
  html_ += "<p>" + escape_markup(text) + "</p>\n";
}

void Page::table(const Table& table) {
  markdown_ += table.markdown() + "\n";
  html_ += table.html();
}

void Page::drawing(const std::string& file, const std::string& svg) {
  markdown_ += "![" + file + "](plots/" + file + ")\n\n";
  html_ += svg;
}

std::string Page::html(const std::string& title) const {
  return fmt::format(kHead, escape_markup(title)) + kStyle + html_ + "</html>\n";
}

}  // namespace hebb
