#pragma once
#include <string>

namespace hebb {

/// docs/configuration-reference.md: every key of a run configuration, of every layer type and of every
/// kind of evaluation, from the schema that also reads them.
std::string configuration_reference();

}  // namespace hebb
