#pragma once
#include <cublasLt.h>

#include <vector>

/// What the stand-in for cuBLASLt was asked, and what it answers.
struct FakeCublasLt {
  struct Query {
    uint32_t schemes = 0, alignment[4] = {};  // of A, B, C, D
    uint64_t workspace_bytes = 0;
    bool wants_fp32_sums = false;
  };
  std::vector<Query> queries;
  int products = 0;
  uint32_t finds_only_for = 0;  // the heuristic finds nothing unless all of these schemes are allowed
  bool finds_nothing = false;

  /// An algorithm that the heuristic names: how long a product takes, and what it writes into every byte of C.
  struct Offer {
    uint64_t name = 0;
    double ms = 0;
    char byte = 0, added_byte = 0;  // without and with what was in C
  };
  std::vector<Offer> offers;  // best first; empty: one without a name, whose products write nothing
  std::vector<uint64_t> ran;  // names
  std::vector<int> most;      // how many algorithms were asked for
  uint64_t refused = ~0ull;   // by MatmulAlgoCheck
  double now_ms = 0;          // a clock that products move
};

#ifdef HEBB_CUBLASLT_FILE
#include "core/shared_library.h"
#include "tests/test.h"

/// That of the library which the program has loaded.
inline FakeCublasLt& fake() {
  static FakeCublasLt* const library = [] {
    FakeCublasLt* (*get)() = nullptr;
    REQUIRE(hebb::SharedLibrary({HEBB_CUBLASLT_FILE}).find("fake_cublaslt", get));
    return get();
  }();
  return *library;
}
#endif
