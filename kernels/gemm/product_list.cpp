#include "kernels/gemm/product_list.h"

#include <fmt/core.h>

namespace hebb {
namespace {

/// Up to 16 bytes: no algorithm asks for more, vector and tensor-map loads included. Whole tensors share multiples of
/// 64, which must not choose another algorithm from run to run. A new one while a graph is recorded would load code
/// first.
int64_t alignment_of(const Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  return address % 16 == 0 ? 16 : static_cast<int64_t>(address & (~address + 1));
}

}  // namespace

ProductKey product_key(const Stream& stream, const Gemm& g) {
  return {.m = g.m,
          .n = g.n,
          .k = g.k,
          .ldc = g.ldc,
          .lda = g.lda,
          .ldb = g.ldb,
          .trans_a = g.trans_a,
          .trans_b = g.trans_b,
          .tf32 = (stream.allows_tf32 || g.tf32) && g.a.dtype == DType::f32,
          .out = g.c.dtype,
          .in = g.a.dtype,
          .align_c = alignment_of(g.c),
          .align_a = alignment_of(g.a),
          .align_b = alignment_of(g.b)};
}

void ProductList::add(const Stream& stream, const Gemm& product) {
  if (product.m == 0 || product.n == 0 || product.k == 0) { return; }
  products_.try_emplace(product_key(stream, product), product.accumulate);
}

void count(Stream& stream, const Gemm& product) {
  if (stream.products != nullptr) { stream.products->add(stream, product); }
}

LaunchWork work_of(const Gemm& g) {
  const double size = static_cast<double>(g.m) * static_cast<double>(g.n) * static_cast<double>(g.k);
  return {.name = fmt::format("product {}{} {} x {} x {}", g.trans_a ? 'T' : 'N', g.trans_b ? 'T' : 'N', g.m, g.n, g.k),
          .flops = 2 * size};
}

}  // namespace hebb
