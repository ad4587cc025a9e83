#pragma once
#include "comm/bucket_layout.h"
#include "comm/communicator.h"
#include "core/workspace.h"

namespace hebb {

/// part [n] = the sum over all lanes of part `rank` of a bucket, in the order of docs/design/data-parallel.md: the same
/// bits for every allowed number of ranks W. bucket [W n]: the sum over the own lanes (LaneSums). f32 or f64. Scratch:
/// as large as the bucket. Bound: (W - 1) n elements sent and received, then memory, (W + 1) n elements.
/// wire bf16, for f32: what each rank gives is rounded once before it is sent, its own part too. The sums stay f32, but
/// their bits depend on W. Scratch: twice the bucket.
void reduce_bucket(Communicator& communicator, Workspace workspace, const Tensor& part, const Tensor& bucket,
                   DType wire);

/// Its scratch. Only `parts` is defined where wire is the type of the bucket.
struct ReduceScratch {
  Tensor parts, sent, received;  // [W n]

  static ReduceScratch of(Workspace& workspace, int64_t count, DType dtype, DType wire);
};
/// The same with scratch of the caller, as large as the bucket or larger. Two or more ranks.
void reduce_bucket(Communicator& communicator, Stream& stream, const Tensor& part, const Tensor& bucket,
                   const ReduceScratch& scratch);

}  // namespace hebb
