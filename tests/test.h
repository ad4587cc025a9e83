#pragma once
// The one include of a test file: Catch2 2 (Debian 12) or 3.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
namespace Catch { using Detail::Approx; }
#endif

#include "tests/paths.h"
