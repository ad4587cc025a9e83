#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace hebb {

/// Number of single-character insertions, deletions, replacements and swaps of neighbours that turn
/// a into b.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `name`, or "" when none is near enough to be a plausible slip (distance
/// at most a third of the longer name, at least 1). Ties: the first candidate.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace hebb
