#pragma once
#include <map>
#include <string>
#include <vector>

#include "study/report/table.h"

namespace hebb {

/// The unit of a key of results or of a statistic, "nats per token" for example; "" where it has none or nobody knows.
std::string unit_of(const std::string& key);

/// What each key of results means, with its unit and its page; keys that mean the same share a row. `kinds`: of the
/// evaluations, by name.
Table meanings_of(const std::vector<std::string>& keys, const std::map<std::string, std::string>& kinds);

}  // namespace hebb
