#pragma once
#include <functional>

#include "core/json.h"

namespace hebb {

/// Calls `read` for a configuration. Where that throws a KeyError, the same configuration is read again without the
/// key, or with another value where it is required, until nothing more can be said for certain. Throws a single error
/// as it was, several as ConfigErrors. `read` starts from its defaults each time.
void read_all(const Json& json, const std::function<void(const Json&)>& read);

}  // namespace hebb
