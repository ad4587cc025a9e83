#pragma once
// Text that fits the terminal of who reads it.
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace hebb {

/// Columns of the terminal behind a file descriptor; `otherwise` where there is none.
int terminal_columns(int descriptor, int otherwise);

/// Columns that valid UTF-8 text takes, one for each character.
size_t text_columns(std::string_view text);

/// A line in pieces of at most `columns` (0: the whole line), cut between words. Pieces after the first are indented
/// by `hang` more spaces than the line. A word that is too long stays whole.
std::string fold(std::string_view line, int columns, size_t hang = 2);

/// Rows of as many cells. The first column and those of `left` stand at their left, the others at their right. Columns
/// that would pass `columns` (0: none does) follow below, beside the first column once more.
std::string text_table(const std::vector<std::vector<std::string>>& rows, int columns,
                       const std::set<size_t>& left = {});

}  // namespace hebb
