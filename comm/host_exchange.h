#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/arena.h"

namespace hebb {

/// Small values of the host between ranks, through memory of the device whose tensors the communicator moves. The host
/// waits. Every rank calls the same functions in the same order.
class HostExchange {
 public:
  /// The communicator outlives this.
  HostExchange(Communicator& communicator, DeviceKind device);

  Communicator& communicator() const { return communicator_; }
  /// The values of all ranks, in order of ranks; all give equally many.
  std::vector<uint64_t> gather(std::span<const uint64_t> own);
  /// The text of each rank.
  std::vector<std::string> gather_texts(const std::string& own);
  /// The text of rank 0.
  std::string from_first(const std::string& own);

 private:
  Communicator& communicator_;
  Stream stream_;
  Arena arena_;
};

}  // namespace hebb
