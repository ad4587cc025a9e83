#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "core/files.h"

namespace hebb {

/// What a job of a ladder does: trains one run and evaluates it, and writes its status.json. `task` is NUMBER.PLACE of
/// a submission. Stops after a save on a signal, or when the submission is cancelled. Returns 0 when the run is done or
/// cancelled, 75 or 14 when it is to go on later, else the code of what failed.
/// Errors: CheckpointError for no such task, or a run folder that another process holds.
int run_ladder_task(const fs::path& ladder, const std::string& task, const std::string& program,
                    const std::function<void(std::string_view)>& line);

}  // namespace hebb
