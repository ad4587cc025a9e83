#pragma once
#include <functional>
#include <vector>

#include "core/tape.h"
#include "layers/rows.h"

namespace hebb {

struct Pass;

/// The other ranks of a training run, as layers see them inside a pass. All ranks run the same layers in the same
/// order, each on a micro-batch of its own.
class RankExchange {
 public:
  virtual ~RankExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// receive = `send` of all ranks, in order of ranks.
  virtual void all_gather(Stream& stream, const Tensor& receive, const Tensor& send) = 0;
  /// data = that of the first rank.
  virtual void from_first(Stream& stream, const Tensor& data) = 0;
};

/// The rows of the micro-batches that all ranks read now, in order of ranks. A rank has `each` of them; where rows end,
/// the last ranks have fewer or none.
struct AllRows {
  Rows rows;
  int64_t each;
  int64_t first, own;  // those of this rank. A rank without any runs its pass on a row that does not count.
};

/// A layer's operation on the rows of all ranks, for layers with one memory for all rows. `op` takes `inputs` [tokens
/// of all ranks, .] for [tokens of this rank, .] (no Var: none), and a pass over all rows. Returns this rank's part of
/// what op returns. Without other ranks: op itself.
Var with_all_rows(Pass& pass, const std::vector<Var>& inputs,
                  const std::function<Var(Pass& all, const std::vector<Var>& inputs)>& op);

}  // namespace hebb
