#pragma once
#include <cstdint>

namespace hebb {

/// A mean in the making. value() is NaN before the first number.
struct Mean {
  double sum = 0;
  int64_t n = 0;

  void add(double x) {
    sum += x;
    ++n;
  }
  double value() const { return sum / static_cast<double>(n); }
};

}  // namespace hebb
