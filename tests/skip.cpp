#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "tests/skip.h"

#include <filesystem>
#include <iostream>
#include <set>

#include "tests/test.h"

namespace hebb::testing {
namespace {

std::set<std::string> skipped;

#if __has_include(<catch2/catch_all.hpp>)
using Listener = Catch::EventListenerBase;
#else
using Listener = Catch::TestEventListenerBase;
#endif

/// Catch2 2 has no skipped cases, and ctest knows whole programs only.
struct SkipListener : Listener {
  using Listener::Listener;
  void testRunEnded(const Catch::TestRunStats& stats) override {
    const Catch::Totals& totals = stats.totals;
    const bool has_run = totals.assertions.total() > 0 || totals.testCases.total() > skipped.size();
    if (!has_run && !skipped.empty()) { std::cout << "every case of this run was skipped" << std::endl; }
  }
};
CATCH_REGISTER_LISTENER(SkipListener)

}  // namespace

void skip_case(const std::string& reason) {
  const std::string name = Catch::getResultCapture().getCurrentTestName();
  if (skipped.insert(name).second) { std::cout << "skipped: " << reason << ": " << name << std::endl; }
}

bool has_mpi() {
  if (std::filesystem::exists(std::filesystem::path(binary_path()).parent_path() / "libhebb_mpi.so")) { return true; }
  skip_case("this build is without MPI");
  return false;
}

}  // namespace hebb::testing
