#pragma once
// What verbs that train print on: lines on stdout, a bar on stderr.
#include <string_view>

#include "core/progress.h"
#include "train/run_log.h"

namespace hebb {

/// A line on stdout, at once.
void print_line(std::string_view line);
/// Columns of the terminal that stdout is; 0: it is none.
int stdout_columns();
/// Lines on stdout, on a terminal folded to its width.
void print_text(std::string_view text);
/// Whether stdout and stderr are one terminal that bars may be drawn on (NO_COLOR is unset or empty).
bool wants_bar();
/// Lines go to stdout, on a terminal folded to its width and above the bar. `bar` must outlive the console; may be
/// null.
Console console_with(Progress* bar);

}  // namespace hebb
