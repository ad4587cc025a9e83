#pragma once
#include <cstdint>
#include <functional>

namespace hebb {

/// Number of worker threads that parallel_for uses, the calling thread included. Set once at start
/// (0 = the cores that this process may use); results never depend on it.
void set_threads(int threads);
int threads();

/// Calls body(begin, end) on disjoint ranges that cover [0, n), in parallel, and returns when all
/// are done. Ranges are multiples of `grain` long (the last may be shorter) and are handed out
/// dynamically: a body must write only what its own range owns, and a reduction must be over fixed
/// blocks, never per thread. Calls nest by running the inner one on the calling thread. The first
/// exception of a body is rethrown here.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

/// parallel_for with body(i) for each i of a range, in order.
template <class Body> void parallel_each(int64_t n, int64_t grain, Body&& body) {
  parallel_for(n, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) { body(i); }
  });
}

}  // namespace hebb
