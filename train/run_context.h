#pragma once
#include <chrono>

#include "comm/host_exchange.h"
#include "train/ranks.h"
#include "train/run_config.h"
#include "train/run_log.h"

namespace hebb {

/// What the parts of a trainer share. It outlives them.
struct RunContext {
  const RunConfig& config;  // resolved
  const Ranks& ranks;
  HostExchange& host;
  RunLog& log;
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
};

}  // namespace hebb
