#pragma once
#include <string>

#include "study/report/table.h"

namespace hebb {

/// A page that is written in Markdown and as self-contained HTML.
class Page {
 public:
  void heading(int level, const std::string& text);
  void paragraph(const std::string& text);
  void table(const Table& table);
  enum class Size { normal, small };
  /// The Markdown links to plots/FILE, the HTML holds the drawing. Drawings that follow each other stand side by side
  /// where the page is wide enough.
  void drawing(const std::string& file, const std::string& svg, Size size = Size::normal);

  const std::string& markdown() const { return markdown_; }
  std::string html(const std::string& title) const;

 private:
  void put(const std::string& html);

  std::string markdown_, html_;
  std::string group_;  // class of the group of drawings that is open
};

}  // namespace hebb
