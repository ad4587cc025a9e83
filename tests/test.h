#pragma once
// The one include of a test file: Catch2 2 (Debian 12) or 3.
#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
namespace Catch {
inline auto Contains(const std::string& text) { return Matchers::ContainsSubstring(text); }
}  // namespace Catch
using Catch::Approx;
#else
#include <catch2/catch.hpp>
namespace Catch {
using Detail::Approx;
}
#endif

#include "tests/paths.h"

namespace hebb::testing {}
// Tests use hebb's names and their own helpers without a prefix.
using namespace hebb;
using namespace hebb::testing;
using Catch::Contains;
