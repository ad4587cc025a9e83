#pragma once
#include <string>

namespace hebb {

/// Name of the machine; "localhost" where the system gives none.
std::string host_name();

}  // namespace hebb
