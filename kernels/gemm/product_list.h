#pragma once
#include <array>
#include <compare>
#include <cstdint>
#include <map>

#include "kernels/gemm/gemm.h"

namespace hebb {

/// What a GPU's library chooses the algorithm of a product by: sizes as in Gemm, types, and what the addresses of its
/// tensors are multiples of, up to 16 bytes.
struct ProductKey {
  int64_t m = 0, n = 0, k = 0, ldc = 0, lda = 0, ldb = 0;
  bool trans_a = false, trans_b = false, tf32 = false;
  DType out = DType::f32, in = DType::f32;  // of C; of A and B
  int64_t align_c = 16, align_a = 16, align_b = 16;

  auto operator<=>(const ProductKey&) const = default;
};
ProductKey product_key(const Stream& stream, const Gemm& product);

/// The algorithm that was measured to be the fastest for a product.
struct TunedProduct {
  ProductKey product;
  std::array<uint64_t, 8> algorithm{};  // cublasLtMatmulAlgo_t
  double first_us = 0, us = 0;          // of one launch: with the heuristic's first choice, and with this one

  bool is_faster() const { return us < first_us; }
};

/// The different products of a dry run that are not empty.
class ProductList {
 public:
  void add(const Stream& stream, const Gemm& product);
  /// Whether it adds to C, where it came first.
  const std::map<ProductKey, bool>& products() const { return products_; }

 private:
  std::map<ProductKey, bool> products_;
};

}  // namespace hebb
