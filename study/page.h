#pragma once
#include <string>

#include "study/table.h"

namespace hebb {

/// A page that is written in Markdown and as self-contained HTML.
class Page {
 public:
  void heading(int level, const std::string& text);
  void paragraph(const std::string& text);
  void table(const Table& table);
  /// The Markdown links to plots/FILE, the HTML holds the drawing.
  void drawing(const std::string& file, const std::string& svg);

  const std::string& markdown() const { return markdown_; }
  std::string html(const std::string& title) const;

 private:
  std::string markdown_, html_;
};

}  // namespace hebb
