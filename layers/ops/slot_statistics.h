#pragma once
#include <map>
#include <string>

#include "core/stream.h"

namespace hebb {

/// Writes "collision", "coverage" and "kld" of the slots i32 that tokens read from a table of `table` slots (spec 81,
/// section 11).
void count_slots(Stream& stream, const Tensor& slots, double table, std::map<std::string, double>& out);

}  // namespace hebb
