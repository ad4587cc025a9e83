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
};
