#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace hebb {

struct Stream;

/// What one launch of a kernel does, as far as its args tell.
struct LaunchWork {
  std::string name;  // empty: the args struct
  double flops = 0;  // 0: not known
  double bytes = 0;  // of its operands, each once
};

/// The time of each operation of a stream, from its launch to the next one: on the CPU with what the host does between
/// the two; on a GPU the host waits before each launch, so that operations do not overlap.
class LaunchProfile {
 public:
  struct Operation {
    int64_t launches = 0;
    double seconds = 0, flops = 0, bytes = 0;
  };

  /// Ends the operation before.
  void begin(Stream& stream, const LaunchWork& work);
  void end(Stream& stream);
  /// By name.
  const std::map<std::string, Operation>& operations() const { return operations_; }

 private:
  std::map<std::string, Operation> operations_;
  Operation* current_ = nullptr;
  double since_ = 0;
};

}  // namespace hebb
