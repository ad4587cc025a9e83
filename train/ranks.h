#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/flight_log.h"

namespace hebb {

/// The ranks of a run as training sees them: what moves bytes between them, and what hears how far this rank is. Copies
/// are the same ranks.
class Ranks {
 public:
  /// One rank alone.
  Ranks() : own_(std::make_shared<Alone>()), communicator_(&own_->communicator), flight_(&own_->flight) {}
  /// Both outlive this. threads: of the CPU, where the configuration leaves them open; 0: all cores. names: of all
  /// ranks, for messages; empty: "rank 1".
  Ranks(Communicator& communicator, FlightLog& flight, int threads = 0, std::vector<std::string> names = {})
      : communicator_(&communicator), flight_(&flight), threads_(threads), names_(std::move(names)) {}

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  bool is_first() const { return rank() == 0; }
  Communicator& communicator() const { return *communicator_; }
  FlightLog& flight() const { return *flight_; }
  int threads() const { return threads_; }
  std::string name(int rank) const {
    return names_.empty() ? "rank " + std::to_string(rank) : names_[static_cast<size_t>(rank)];
  }

 private:
  struct Alone {
    SelfCommunicator communicator;
    FlightLog flight;
  };
  std::shared_ptr<Alone> own_;
  Communicator* communicator_;
  FlightLog* flight_;
  int threads_ = 0;
  std::vector<std::string> names_;
};

}  // namespace hebb
