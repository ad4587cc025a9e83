#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/cuda_device.h"
#include "kernels/gemm/product_list.h"

namespace hebb::HEBB_DEVICE {

/// That of the library of matrix products, as it counts: 130204.
int64_t products_version();

struct MeasuredProducts {
  std::vector<TunedProduct> products;
  int64_t without_memory = 0;  // products whose tensors the device has no room for; they are not among `products`
};
/// Times the algorithms that the heuristic names for each product, on random numbers in memory that is given back, and
/// takes the fastest of those that compute the same bits as its first choice. products: whether each adds to C.
/// done: called after each product with how many are done.
MeasuredProducts measure_products(Stream& stream, const std::map<ProductKey, bool>& products,
                                  const std::function<void(int64_t done)>& done);

/// Products that run for the first time from here on take these. Returns which of them the library refuses: none is
/// taken then; empty: all are.
std::string take_algorithms(Stream& stream, std::span<const TunedProduct> products);

}  // namespace hebb::HEBB_DEVICE
