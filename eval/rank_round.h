#pragma once
// What the ranks of an evaluation tell each other (docs/verbs/eval.md, Several ranks).
#include <optional>
#include <string>
#include <vector>

#include "comm/host_exchange.h"
#include "core/error.h"
#include "core/json.h"

namespace hebb {

/// Why a rank cannot go on with an evaluation.
struct RankFailure {
  int64_t item = -1;  // of the list, -1: not in one
  ExitCode code = ExitCode::kOther;
  bool is_missing = false;  // MissingFileError
  std::string text;
};

/// A failure that all ranks know.
class AgreedError : public Error {
 public:
  explicit AgreedError(const RankFailure& failure) : Error(failure.code, failure.text), failure_(failure) {}
  const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

/// Errors: `error` itself where it is one of communication.
RankFailure failure_of(const Error& error, int64_t item = -1);

/// What the ranks have said in one round.
struct RankRound {
  std::vector<Json> values;            // of each rank; null of one that has failed outside of a list
  std::optional<RankFailure> failure;  // the first in order of items, then of ranks
};

/// One round: every rank says a value, and whether it has failed. A rank that has failed outside of a list is in the
/// round that the others are in. `place`: of this rank, equal on all others. Errors: CommError where it is not.
RankRound hold_round(HostExchange& exchange, const std::string& place, const Json& value,
                     const std::optional<RankFailure>& failure);

}  // namespace hebb
