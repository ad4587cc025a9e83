#pragma once
#include "comm/host_exchange.h"
#include "data/rows/loader.h"
#include "layers/all_rows.h"
#include "train/ranks.h"
#include "train/run_config.h"

namespace hebb {

/// What the passes of several ranks exchange (docs/design/data-parallel.md, Exchanges inside a pass).
class RankPasses final : public RankExchange {
 public:
  /// shares_rows: layers of the model read the rows of all ranks. config outlives this.
  RankPasses(const RunConfig& config, const Ranks& ranks, bool shares_rows, DeviceKind device);

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void all_gather(Stream& stream, const Tensor& receive, const Tensor& send) override;
  void from_first(Stream& stream, const Tensor& data) override;

  bool shares_rows() const { return shares_rows_; }
  /// All rows where each rank has a whole micro-batch without documents.
  AllRows whole(Stream& stream, Arena& arena) const;
  /// All rows from what each rank has: `rows`, of which the first `own` count. Every rank calls it alike.
  AllRows gather(Stream& stream, Arena& arena, const MicroBatch& rows, int64_t own);

 private:
  AllRows make(Rows rows, int64_t own) const;

  const TrainConfig& train_;
  Ranks ranks_;
  HostExchange host_;
  bool shares_rows_;
};

}  // namespace hebb
