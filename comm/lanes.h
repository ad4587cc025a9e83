#pragma once
#include <string_view>
#include <vector>

#include "core/stream.h"

namespace hebb {

/// The numbers of ranks that sum `lanes` lanes to the same bits (docs/design/data-parallel.md), ascending: with
/// lanes = q 2^k, q odd, these are q 2^j for j = 0 ... k, and 1.
std::vector<int> allowed_sizes(int lanes);

/// Errors: ConfigError naming the allowed sizes where `size` is none of them. where: of the setting, as in ConfigError.
void check_lanes(int lanes, int size, std::string_view where);

/// Gradients of the lanes of one rank, added in the order of the whole sum: a tree over neighbours, then, where a rank
/// has several trees, from left to right. Each lane is computed into a buffer of its own.
///
///   for (int lane = 0; lane < own; ++lane) {
///     compute(sums.next());    // overwrites it
///     sums.finish(stream);
///   }
///   send(sums.total());
class LaneSums {
 public:
  /// Buffers that a rank with `own` lanes needs: 1 + log2(own), and one more where own is no power of two.
  static int buffers(int own);

  /// buffers: as many as buffers(own), of one shape and type (f32 or f64).
  LaneSums(int own, std::vector<Tensor> buffers);

  /// Where the gradients of the next lane go; its contents are undefined.
  const Tensor& next() const;
  /// That lane is complete: adds whatever sums are complete now.
  void finish(Stream& stream);
  /// The sum of all own lanes, after the last; the next step begins anew then.
  const Tensor& total() const;

 private:
  std::vector<Tensor> free_, waiting_;  // waiting_: complete subtrees, the largest (and the sum of trees) first
  Tensor total_;
  int own_, lane_ = 0;
};

}  // namespace hebb
